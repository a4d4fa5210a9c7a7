# Guards one etcd and the two nodes that Patroni manages with it: they go, with their directory, once
# standard input ends, however the process at the other end ended.
#
# Usage: patroni.sh PYTHON PARENT_DIR CLIENT_URL PEER_URL SETTINGS SETTINGS. Says the directory it made,
# waits for the programs to be put there, and at the order to start says the process ids of the two
# managers. @dir@ in the settings stands for the directory.

trap '' HUP INT PIPE QUIT TERM
umask 077

dir=$(mktemp -d "$2/lh-XXXXXX") || exit 1
echo "$dir"

managers=
manage() {
    printf '%s\n' "$2" | sed "s|@dir@|$dir|g" >"$dir/$1.yml"
    PYTHONPATH=$dir/tools/packages "$python" -m patroni "$dir/$1.yml" </dev/null >>"$dir/$1.log" 2>&1 &
    managers="$managers $!"
    echo $!
}

python=$1
read -r order
if [ "$order" = start ]; then
    "$dir/tools/etcd" --name etcd --data-dir "$dir/etcd" --listen-client-urls "$3" --advertise-client-urls "$3" \
        --listen-peer-urls "$4" --initial-advertise-peer-urls "$4" --initial-cluster "etcd=$4" \
        </dev/null >>"$dir/etcd.log" 2>&1 &
    managers=$!
    manage one "$5"
    manage two "$6"
    while read -r _; do :; done
fi

exec >/dev/null 2>&1

# The managers first: they would start what is killed again.
for manager in $managers; do
    kill -KILL "$manager"
done
for manager in $managers; do
    wait "$manager"
done

# Servers work in their data directories, and a manager's helpers in this one.
tries=0
left=yes
while [ -n "$left" ] && [ $tries -lt 100 ]; do
    left=
    for process in /proc/[0-9]*; do
        for data in "$dir/one" "$dir/two"; do
            [ "$process/cwd" -ef "$data" ] && kill -KILL "${process#/proc/}" && left=yes
        done
    done
    tries=$((tries + 1))
    sleep 0.05
done

# A killed server leaves its shared memory segment behind.
for data in "$dir/one" "$dir/two"; do
    segment=$(sed -n '7s/.* //p' "$data/postmaster.pid") && [ -n "$segment" ] && ipcrm -m "$segment"
done

tries=0
until rm -rf "$dir" || [ $tries -ge 50 ]; do
    sleep 0.1
    tries=$((tries + 1))
done
