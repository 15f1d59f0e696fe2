package leaderhttp

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

var errNoAddress = errors.New("leaderhttp: the leader publishes no address")

// target returns the scheme and the host of a published address. One without a
// scheme gets the given one.
func target(address, scheme string) (*url.URL, error) {
	if address == "" {
		return nil, errNoAddress
	}
	malformed := func(why string) (*url.URL, error) {
		return nil, fmt.Errorf("leaderhttp: the leader publishes the address %q, which %s: it must be host:port, http://host:port or https://host:port", address, why)
	}
	text := address
	if !strings.Contains(text, "://") {
		text = scheme + "://" + text
	}
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return malformed("is no URL")
	case u.Scheme != "http" && u.Scheme != "https":
		return malformed("has another scheme")
	case u.Hostname() == "":
		return malformed("has no host")
	case u.User != nil || strings.TrimSuffix(u.Path, "/") != "" || u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return malformed("has more than a host")
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return malformed("has no valid port")
		}
	}
	return &url.URL{Scheme: u.Scheme, Host: u.Host}, nil
}

// at returns where r goes at the leader: only scheme and host are the leader's.
func at(leader *url.URL, r *http.Request) *url.URL {
	return &url.URL{
		Scheme: leader.Scheme, Host: leader.Host,
		Path: r.URL.Path, RawPath: r.URL.RawPath, RawQuery: r.URL.RawQuery, ForceQuery: r.URL.ForceQuery,
	}
}
