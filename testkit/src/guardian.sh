# Guards one throw-away PostgreSQL server: starts it on request, and takes it and its
# directory away once standard input ends, however the process at the other end ended.
#
# Usage: guardian.sh BIN_DIR PARENT_DIR. Says the directory it made, then answers each
# order, one line for one line.

# The terminal's signals are meant for the tests; what is guarded goes when they have.
# An answer that nobody reads any more is no reason to end before cleaning up.
trap '' HUP INT PIPE QUIT TERM
umask 077

bin=$1
dir=$(mktemp -d "$2/lh-XXXXXX") || exit 1
data=$dir/data
server=
echo "$dir"

while read -r order arguments; do
    case $order in
    initdb)
        "$bin/initdb" -D "$data" -A trust -U postgres -E UTF8 --no-locale -N </dev/null >>"$dir/setup.log" 2>&1
        echo $?
        ;;
    copy)
        "$bin/pg_basebackup" -D "$data" -d "$arguments" -R -X stream -c fast -N </dev/null >>"$dir/setup.log" 2>&1
        echo $?
        ;;
    start)
        "$bin/postgres" -D "$data" </dev/null >>"$dir/server.log" 2>&1 &
        server=$!
        echo "$server"
        ;;
    reap)
        [ -n "$server" ] && wait "$server"
        server=
        echo reaped
        ;;
    esac
done

exec >/dev/null 2>&1

if [ -n "$server" ]; then
    # Asked again each time round: a server that is just starting does not listen yet,
    # and a frozen one listens only when continued.
    tries=0
    while kill -0 "$server" && [ $tries -lt 100 ]; do
        kill -QUIT "$server"
        kill -CONT "$server"
        sleep 0.03
        tries=$((tries + 1))
    done
fi

# Whatever outlived the server works in its data directory.
for process in /proc/[0-9]*; do
    [ "$process/cwd" -ef "$data" ] && kill -KILL "${process#/proc/}"
done

# A killed server leaves its shared memory segment behind.
segment=$(sed -n '7s/.* //p' "$data/postmaster.pid") && [ -n "$segment" ] && ipcrm -m "$segment"

tries=0
until rm -rf "$dir" || [ $tries -ge 50 ]; do
    sleep 0.1
    tries=$((tries + 1))
done
