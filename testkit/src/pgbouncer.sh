# Guards one PgBouncer: it goes, with its directory, once standard input ends, however the
# process at the other end ended.
#
# Usage: pgbouncer.sh PROGRAM PARENT_DIR SETTINGS. Says the directory it made.

trap '' HUP INT PIPE QUIT TERM
umask 077

dir=$(mktemp -d "$2/lh-XXXXXX") || exit 1
printf '"postgres" ""\n' >"$dir/users"
printf '%s\nauth_file = %s\n' "$3" "$dir/users" >"$dir/pgbouncer.ini"
"$1" "$dir/pgbouncer.ini" </dev/null >>"$dir/log" 2>&1 &
bouncer=$!
echo "$dir"

while read -r _; do :; done

exec >/dev/null 2>&1
kill -KILL "$bouncer"
wait "$bouncer"
rm -rf "$dir"
