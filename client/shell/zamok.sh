#!/bin/sh
# Runs a command under a lock of a zamok cluster, with a POSIX shell and curl (7.55 or newer).
# docs/guide/http.md explains it.
#
#	zamok.sh NAME -- COMMAND…
#
# Environment: ZAMOK_HTTP, the nodes, "http://node1:5752 http://node2:5752"; ZAMOK_TTL, how long the
# lock outlives this machine, in seconds (15, at least 10); ZAMOK_WAIT, the longest wait ("30s",
# "forever"). The command has its token in ZAMOK_LOCK_TOKEN, and is ended when the lock is lost. To
# nodes with TLS write https; what curl needs for them stands in $CURL_HOME/.curlrc, as
# cacert = "/etc/ca.pem". ZAMOK_TOKEN_FILE names a file with the token that says who this is;
# without TLS it is sent to this machine only.
# Exit codes: the command's own; 121 not acquired, 123 lost, 124 unavailable, 125 others.
set -eu

fail() { # CODE MESSAGE: without control characters, since it may be a server's
	printf 'zamok.sh: %s\n' "$(printf %s "$2" | tr -d '\000-\037\177')" >&2
	exit "$1"
}

now() { # whole seconds, of a clock that is never set, if there is one
	if [ -r /proc/uptime ]; then cut -d. -f1 /proc/uptime; else date +%s; fi
}

# seconds TEXT: "1m54.5s" is 114; it fails if TEXT is no duration. What a server has written is
# parsed, and never in $(( )): there some shells run commands that they find in it.
seconds() {
	printf '%s\n' "$1" | awk '
		NR > 1 || !/^([0-9]+h)?([0-9]+m)?([0-9]+(\.[0-9]+)?s|[0-9]+ms)?$/ || !/./ { exit wrong = 1 }
		{
			sub(/[0-9]+ms$/, "")
			if (i = index($0, "h")) { sum = substr($0, 1, i - 1) * 3600; $0 = substr($0, i + 1) }
			if (i = index($0, "m")) { sum += substr($0, 1, i - 1) * 60; $0 = substr($0, i + 1) }
			sum += $0
		}
		END { if (wrong) exit 1; printf "%d\n", sum }'
}

number() { # TEXT: fails if it is no number
	case $1 in '' | *[!0-9]*) return 1 ;; esac
}

field() { # FIELD FILE: the text of a field in JSON
	sed -n 's/.*"'"$1"'":"\([^"]*\)".*/\1/p' "$2"
}

# request PATH UNTIL CURL-ARGUMENT… sends a request to one node after another until one answers it.
# $status: 000 if none does, "none" if none of them is a node; $sent: when it was sent; $doubt: not
# empty if an attempt before may have taken effect.
request() {
	path=$1 until=$2 doubt=''
	shift 2
	while :; do
		wrong=yes
		for node in $nodes; do
			node=${node%/} sent=$(now)
			[ "$sent" -lt "$until" ] || { status=000; return; }
			: >"$answer" >"$answer.head" # those of the attempt before
			result=$(curl -sS -K "$dir/curl" -D "$answer.head" -o "$answer" \
				-w '%{http_code} %{time_pretransfer}' --connect-timeout 1 \
				"$@" "$node$path" 2>"$answer.error") && failed=0 || failed=$?
			status=${result%% *}
			from=$(tr -d '\r' <"$answer.head" |
				sed -n 's/^[Zz]amok-[Cc]luster: \([0-9a-f]*\)$/\1/p')
			case $failed,$status in
			0,429 | 0,50[234]) wrong='' ;; # the node can't help now: the next one
			0,*)
				# that was no node, or its answer was changed on the way
				[ "$from" ] || [ "$status" -ge 300 ] || { doubt=yes; continue; }
				[ "$cluster" ] || [ -z "$from" ] || pin "$from"
				[ -z "$from" ] || [ "$from" = "$cluster" ] || two_clusters
				[ "$(field outcome "$answer")" != not_done ] || doubt='' # no attempt has done it
				return
				;;
			1,* | 35,* | 60,*) ;; # it speaks no HTTP, or no TLS
			*) wrong='' ;;
			esac
			case $failed,$result,$(field outcome "$answer") in
			0,*,not_done | [!0]*,000\ 0[.,]000000,*) ;; # it is not done, or nothing was sent
			*) doubt=yes ;;
			esac
		done
		[ -z "$wrong" ] || [ "$path" != /v1/acquire ] || { status=none; return; }
		sleep 1 # as Retry-After says
	done
}

# CLUSTER: it is that of this run from the first answer on; in another one, another program may hold
# the same lock
pin() {
	cluster=$1
	printf 'header = "Zamok-Cluster: %s"\n' "$1" >>"$dir/curl"
}

two_clusters() {
	status=409
	printf '{"code":"wrong_cluster","message":"%s belongs to cluster %s, and another node of ZAMOK_HTTP to %s"}' \
		"$node" "$from" "$cluster" >"$answer"
}

# renew renews the lock. The time for which it is certain counts from before the request was sent:
# so old the lease may be.
renew() {
	request /v1/renew $((deadline - kill_after - 2)) --max-time 2 -d "@$dir/lock"
	[ "$status" = 200 ] && valid=$(seconds "$(field valid_for "$answer")") &&
		deadline=$((sent + valid))
}

# in the background: renews the lock; when it is lost, ends the command before another program can
# have it
keep() {
	answer=$dir/renewed
	while sleep "$pause"; do
		kill -0 "$job" || return 0 # and this script was killed, or would have ended this loop
		renew || break
	done
	: >"$dir/lost"
	stop
}

stop() { # ends the command and what it has started
	kill -s TERM -- "$group$job" || :
	end=$(($(now) + kill_after))
	while [ "$(now)" -lt "$end" ] && kill -0 -- "$group$job"; do sleep 1; done
	kill -s KILL -- "$group$job" || :
} 2>/dev/null

# shellcheck disable=SC2317 # it is called, at every exit
finish() {
	code=$?
	trap '' EXIT INT TERM HUP
	[ -z "$keeper" ] || kill "$keeper" 2>/dev/null || :
	[ -z "$job" ] || stop
	if [ -e "$dir/lock" ]; then
		answer=$dir/released
		request /v1/release $(($(now) + 5)) --max-time 2 -d "@$dir/lock"
		case $status in
		200)
			case $(field reason "$answer") in '' | dropped | closed) ;; *) : >"$dir/lost" ;; esac
			;;
		000) ;; # without an answer, it is free one ttl after the last renewal
		*) [ "$doubt" ] || : >"$dir/lost" ;; # else the attempt before may have released it
		esac
	fi
	if [ -e "$dir/lost" ]; then
		echo "zamok.sh: the lock was lost: another program may hold it" >&2
		code=123
	fi
	rm -rf "$dir"
	exit "$code"
}

if [ $# -lt 3 ] || [ "$2" != -- ]; then fail 125 'usage: zamok.sh NAME -- COMMAND…'; fi
name=$(printf %s "$1" | sed 's/["\\]/\\&/g')
shift 2
nodes=${ZAMOK_HTTP:-http://127.0.0.1:5752 http://127.0.0.1:5762 http://127.0.0.1:5772}
for node in $nodes; do
	case $node in
	http://[!/]* | https://[!/]*) ;;
	*) fail 125 "ZAMOK_HTTP: $node is no address of a node, as http://node1:5752" ;;
	esac
done
ttl=${ZAMOK_TTL:-15}
wait=${ZAMOK_WAIT:-30s}
kill_after=2 # seconds from TERM to KILL
number "$ttl" && [ "$ttl" -ge 10 ] || fail 125 'ZAMOK_TTL is below 10'
case $wait in
forever) end=999999999999 ;;
*)
	end=$(seconds "$wait") && end=$(($(now) + end + ttl)) ||
		fail 125 'ZAMOK_WAIT is neither a time, as in 1m30s, nor forever'
	;;
esac
if [ "${ZAMOK_TOKEN_FILE:-}" ]; then
	for node in $nodes; do
		echo "$node" |
			grep -Eq '^https:|^http://(localhost|127(\.[0-9]+){3}|\[::1\])(:[0-9]+)?/?$' ||
			fail 125 "$node: a token is sent over https only, or to this machine: others could read it on the way"
	done
fi
job='' keeper='' cluster=''
dir=$(mktemp -d) # other users can't read it: what is in it is the right to the lock
answer=$dir/answer
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
if [ "${ZAMOK_TOKEN_FILE:-}" ]; then # on a command line others would see it
	printf 'header = "Authorization: Bearer %s"\n' "$(cat "$ZAMOK_TOKEN_FILE")"
fi >"$dir/curl"

# Acquire. While it waits (202), the same request under the same key keeps its place.
printf '{"name":"%s","ttl":"%ss","wait":"%s","poll":"%ss"}' "$name" "$ttl" "$wait" \
	$((ttl / 3)) >"$dir/request"
status=410 waited=yes
# 410 after 202: granted and lost unnoticed, so it begins anew
while [ "$status" = 202 ] || [ "$status$waited" = 410yes ]; do
	waited=yes
	if [ "$status" != 202 ]; then
		printf 'Idempotency-Key: %s' "$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')" >"$dir/key"
		waited=''
	fi
	request /v1/acquire "$end" --max-time $((ttl / 3 + 5)) -H "@$dir/key" -d "@$dir/request"
done
case $status in
000) fail 124 "no node has answered in time; asked (ZAMOK_HTTP): $nodes" ;;
none) fail 125 "$node is no address of a node: $(cat "$answer.error" "$answer")" ;;
409) [ "$(field code "$answer")" = wrong_cluster ] || fail 121 "$(field message "$answer")" ;;
esac
grep -q '^{' "$answer" || fail 125 "$node is no address of a node: $(cat "$answer")"
[ "$status" = 200 ] || fail 125 "$node: $(cat "$answer")"
mv "$answer" "$dir/lock" # the body of renew and release
valid=$(seconds "$(field valid_for "$dir/lock")") ||
	fail 125 'the node has answered no time for which the lock is certain'
ZAMOK_LOCK_TOKEN=$(field token "$dir/lock")
number "$ZAMOK_LOCK_TOKEN" || fail 125 'the node has answered a token that is no number'
deadline=$((sent + valid))
pause=$((valid / 3))
# the answer took long
[ "$(now)" -le $((sent + pause)) ] || renew || fail 124 'the lock could not be renewed'
export ZAMOK_LOCK_TOKEN

# Run the command, in a process group of its own where that is possible.
exec 3<&0
group=''
setsid=''
if command -v setsid >/dev/null; then setsid=setsid group=-; fi
$setsid "$@" <&3 3<&- &
job=$!
keep </dev/null >/dev/null 2>&1 3<&- &
keeper=$!
code=0
wait "$job" || code=$?
job=''
exit "$code"
