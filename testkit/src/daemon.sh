# Guards one server program: it goes, with its directory, once standard input ends, however
# the process at the other end ended.
#
# Usage: daemon.sh PARENT_DIR PROGRAM ARGUMENT... Says the directory it made, in which the program
# works, and the program's process id.

trap '' HUP INT PIPE QUIT TERM
umask 077

dir=$(mktemp -d "$1/lh-XXXXXX") || exit 1
shift
cd "$dir" || exit 1
"$@" </dev/null >>log 2>&1 &
server=$!
echo "$server $dir"

while read -r _; do :; done

exec >/dev/null 2>&1
kill -KILL "$server"
wait "$server"
cd /
rm -rf "$dir"
