package web

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"zamok/api/wire"
	"zamok/api/zamokpb"
)

// CheckOrigin refuses what a web page of another site makes a browser send. Without that, any page
// could take locks of a node on the visitor's own machine or network. It is no protection against
// programs: those may send any header. isHost reports whether a name is this node's.
//
//   - Host must be one of this node's names, or an IP address: a name that an attacker's DNS points
//     to this node is neither.
//   - Origin and Sec-Fetch-Site, which browsers add, must be this site's.
//   - A request with the User-Agent of a browser that takes a lock by GET needs one of them, or a
//     Referer. Browsers add none of them to some requests for an address without TLS.
func CheckOrigin(r *http.Request, isHost func(name string) bool, takesLock bool) error {
	host := hostOf(r.Host)
	if _, err := netip.ParseAddr(host); err != nil && host != "" && host != "localhost" &&
		!isHost(host) {
		return crossSite(
			"host %q is none of this node's names; a name for it is given with --http-host", host)
	}
	origin, site := r.Header.Get("Origin"), r.Header.Get("Sec-Fetch-Site")
	if origin != "" && !sameHost(origin, r.Host) {
		return crossSite("it comes from a web page of %s", origin)
	}
	if site != "" && site != "same-origin" && site != "none" {
		return crossSite("it comes from a web page of another site")
	}
	if takesLock && origin == "" && site == "" && strings.HasPrefix(r.UserAgent(), "Mozilla/") &&
		!sameHost(r.Referer(), r.Host) {
		return crossSite("a browser sent it, and it does not say for which page")
	}
	return nil
}

func crossSite(format string, args ...any) error {
	return wire.Errorf(zamokpb.Code_CODE_DENIED, "not done: the request was refused, since "+format,
		args...)
}

// hostOf is a host without its port and brackets, in lower case.
func hostOf(hostPort string) string {
	host, _, err := net.SplitHostPort(hostPort)
	if err != nil {
		host = hostPort
	}
	return strings.ToLower(strings.Trim(host, "[]"))
}

func sameHost(address, host string) bool {
	u, err := url.Parse(address)
	return err == nil && u.Host != "" && strings.EqualFold(u.Host, host)
}
