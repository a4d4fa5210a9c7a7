# Guards one run of the tests: it is killed once standard input ends, however the process at the
# other end ended. What it started itself goes with it.
#
# Usage: guard.sh PROGRAM ARGUMENT... Ends as the program does.

trap '' HUP INT PIPE QUIT TERM
exec 3<&0
"$@" </dev/null 3<&- &
run=$!
{
    while read -r _; do :; done
    kill -KILL "$run"
} <&3 >/dev/null 2>&1 &
watch=$!
wait "$run"
status=$?
kill -KILL "$watch"
exit $status
