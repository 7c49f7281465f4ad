package kernel

import (
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// SettingOptions are what Settings depends on.
type SettingOptions struct {
	Release Release
	// StrictARP answers ARP only for addresses of the device that is asked:
	// MetalLB and others that announce an address from one node need it.
	StrictARP bool
}

// Settings are the sysctls that the mode wants. They are all of the network
// namespace; ip_forward is not among them, as no mode works without it.
func Settings(o SettingOptions) []Setting {
	const vs = "net/ipv4/vs/"
	list := []Setting{
		{
			Name: vs + "conntrack", Value: "1", Default: "0",
			Why: "flows to virtual servers cannot be masqueraded and are taken for invalid",
		},
		{
			Name: vs + "expire_nodest_conn", Value: "1", Default: "0",
			Why: "UDP flows go on to an endpoint that is gone (kubernetes#71514)",
		},
		{
			Name: vs + "expire_quiescent_template", Value: "1", Default: "0",
			Why: "clients with affinity stay with an endpoint that drains",
		},
	}
	if reuse, ok := reuseMode(o.Release); ok {
		list = append(list, reuse)
	}
	if o.StrictARP {
		list = append(list,
			Setting{Name: "net/ipv4/conf/all/arp_ignore", Value: "1", Why: "the node answers ARP for every Service address"},
			Setting{Name: "net/ipv4/conf/all/arp_announce", Value: "2", Why: "the node announces Service addresses by ARP"})
	}
	return list
}

// reuseMode is what to do with a packet that opens a connection from a port
// that is still in TIME_WAIT. With 1 it is scheduled anew; kernels before 5.9
// drop it when its conntrack entry exists, which costs the client a second
// (kubernetes#81775). With 0 it goes where the old connection went, also to an
// endpoint of weight 0. Before 4.1 there is no such setting.
func reuseMode(r Release) (Setting, bool) {
	const name = "net/ipv4/vs/conn_reuse_mode"
	switch {
	case r.Less(Release{4, 1}):
		return Setting{}, false
	case r.Less(Release{5, 9}):
		return Setting{
			Name: name, Value: "0", Default: "1",
			Why: "a client that uses a port again waits for a second (kubernetes#81775)",
		}, true
	}
	return Setting{
		Name: name, Value: "1", Default: "1",
		Why: "a client that uses a port again reaches an endpoint that drains",
	}, true
}

// Release is the version of a kernel, as far as it matters.
type Release struct{ Major, Minor int }

// Less tells whether r is older than o.
func (r Release) Less(o Release) bool {
	return r.Major < o.Major || r.Major == o.Major && r.Minor < o.Minor
}

// String returns the version, such as "6.1".
func (r Release) String() string { return fmt.Sprintf("%d.%d", r.Major, r.Minor) }

// ParseRelease reads what uname -r prints, such as "5.10.0-21-amd64".
func ParseRelease(text string) (Release, error) {
	major, rest, ok := strings.Cut(text, ".")
	if !ok {
		return Release{}, fmt.Errorf("kernel release %q: want two numbers with a dot", text)
	}
	end := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
	if end < 0 {
		end = len(rest)
	}
	var r Release
	var err error
	if r.Major, err = strconv.Atoi(major); err == nil {
		r.Minor, err = strconv.Atoi(rest[:end])
	}
	if err != nil {
		return Release{}, fmt.Errorf("kernel release %q: want two numbers with a dot: %w", text, err)
	}
	return r, nil
}

// Running returns the release of the running kernel.
func Running() (Release, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return Release{}, fmt.Errorf("uname: %w", err)
	}
	return ParseRelease(unix.ByteSliceToString(name.Release[:]))
}
