package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// socketBetween is the inode of this machine's TCP socket that is connected from one address to another; ""
// if there is none. The kernel is asked for this one (sock_diag(7)): its list of all sockets is long on a
// machine on which much was connected in the last minute.
func socketBetween(from, to *net.TCPAddr) (inode string, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	within := unix.NsecToTimeval(int64(time.Second))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &within); err != nil {
		return "", err
	}
	if err := unix.Sendto(fd, socketRequest(from, to), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return "", err
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return "", err
	}
	return parseSocket(answer[:n])
}

const (
	diagByFamily     = 20           // SOCK_DIAG_BY_FAMILY
	diagRequestBytes = 16 + 56      // nlmsghdr, inet_diag_req_v2
	diagInodeOffset  = 16 + 52 + 16 // where idiag_inode is in the answer
)

// socketRequest is the question: struct nlmsghdr, struct inet_diag_req_v2.
func socketRequest(from, to *net.TCPAddr) []byte {
	b := make([]byte, diagRequestBytes)
	own := binary.NativeEndian
	own.PutUint32(b[0:], diagRequestBytes)
	own.PutUint16(b[4:], diagByFamily)
	own.PutUint16(b[6:], unix.NLM_F_REQUEST)
	b[16], b[17] = unix.AF_INET, unix.IPPROTO_TCP
	own.PutUint32(b[20:], ^uint32(0)) // in whatever state
	binary.BigEndian.PutUint16(b[24:], uint16(from.Port))
	binary.BigEndian.PutUint16(b[26:], uint16(to.Port))
	copy(b[28:], from.IP.To4())
	copy(b[44:], to.IP.To4())
	own.PutUint64(b[64:], ^uint64(0)) // no cookie
	return b
}

func parseSocket(b []byte) (inode string, err error) {
	if len(b) < 20 {
		return "", errors.New("sock_diag answers nothing")
	}
	own := binary.NativeEndian
	switch kind := own.Uint16(b[4:]); {
	case kind == unix.NLMSG_ERROR:
		err := unix.Errno(-int32(own.Uint32(b[16:])))
		if err == unix.ENOENT {
			return "", nil
		}
		return "", fmt.Errorf("sock_diag: %w", err)
	case kind == diagByFamily && len(b) >= diagInodeOffset+4:
		return fmt.Sprint(own.Uint32(b[diagInodeOffset:])), nil
	default:
		return "", fmt.Errorf("sock_diag answers with message %d of %d bytes", kind, len(b))
	}
}
