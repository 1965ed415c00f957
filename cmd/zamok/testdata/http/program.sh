#!/bin/sh
# count FILE ROUNDS counts in a file under a lock; hold NAME waits until the lock is lost; use NAME does nothing under it.
set -eu
self=$0
zamok=$(dirname "$0")/../../../../client/shell/zamok.sh
case $1 in
count)
	for _ in $(seq "$3"); do ZAMOK_WAIT=1m "$zamok" counter -- "$self" once "$2"; done
	;;
once)
	read -r count last <"$2"
	if [ "$ZAMOK_LOCK_TOKEN" -le "$last" ]; then
		echo "the token $ZAMOK_LOCK_TOKEN follows $last" >&2
		exit 1
	fi
	echo "$((count + 1)) $ZAMOK_LOCK_TOKEN" >"$2"
	;;
hold)
	ZAMOK_TTL=10 exec "$zamok" "$2" -- sh -c 'trap "echo lost; exit 0" TERM; echo holding; sleep 1000 & wait'
	;;
use) exec "$zamok" "$2" -- echo used ;;
esac
