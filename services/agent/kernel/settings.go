package kernel

import (
	"errors"
	"fmt"
	"os"
	"path"
	"runtime"
	"strconv"
	"strings"
	"time"

	"k8s.io/kube-proxy/config/v1alpha1"

	"github.com/portway/portway/modules/dataplane"
)

// conntrackLimit bounds what many cores multiply to, as in kube-proxy: each
// entry is memory that cannot be swapped.
const conntrackLimit = 1 << 20

// A setting is the value that a file of /proc or /sys ought to have.
type setting struct {
	file    string
	value   int
	atLeast bool // more is right too
}

// Machine is where the files are: "/" but for tests.
type Machine struct{ Root string }

// SetConntrack sets what the configuration asks of connection tracking, and
// returns a sentence for each thing that could not be set.
func (m Machine) SetConntrack(ct *v1alpha1.KubeProxyConntrackConfiguration) []error {
	var errs []error
	for _, s := range conntrackSettings(ct, m.cpus()) {
		if err := m.ensure(s); err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// SetOOMScore sets how readily this process is killed when memory runs out. To
// go below what it was given needs CAP_SYS_RESOURCE.
func (m Machine) SetOOMScore(score int32) error {
	return m.ensure(setting{file: "proc/self/oom_score_adj", value: int(score)})
}

func conntrackSettings(ct *v1alpha1.KubeProxyConntrackConfiguration, cpus int) []setting {
	var list []setting
	if limit := conntrackMax(ct, cpus); limit > 0 {
		list = append(
			list,
			setting{file: "proc/sys/net/netfilter/nf_conntrack_max", value: limit, atLeast: true},
			setting{file: "sys/module/nf_conntrack/parameters/hashsize", value: limit / 4, atLeast: true},
		)
	}
	timeout := func(name string, d time.Duration) {
		if d > 0 {
			list = append(list, setting{file: "proc/sys/net/netfilter/nf_conntrack_" + name, value: int(d / time.Second)})
		}
	}
	if d := ct.TCPEstablishedTimeout; d != nil {
		timeout("tcp_timeout_established", d.Duration)
	}
	if d := ct.TCPCloseWaitTimeout; d != nil {
		timeout("tcp_timeout_close_wait", d.Duration)
	}
	timeout("udp_timeout", ct.UDPTimeout.Duration)
	timeout("udp_timeout_stream", ct.UDPStreamTimeout.Duration)
	if ct.TCPBeLiberal {
		list = append(list, setting{file: liberal, value: 1})
	}
	return list
}

func conntrackMax(ct *v1alpha1.KubeProxyConntrackConfiguration, cpus int) int {
	if ct.MaxPerCore == nil || *ct.MaxPerCore <= 0 {
		return 0
	}
	floor := 0
	if ct.Min != nil {
		floor = int(*ct.Min)
	}
	return max(floor, min(int(*ct.MaxPerCore)*cpus, conntrackLimit))
}

const liberal = "proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal"

// ConntrackLiberal tells whether conntrack takes TCP packets outside the window
// for valid.
func (m Machine) ConntrackLiberal() bool {
	n, err := m.read(liberal)
	return err == nil && n != 0
}

// Families are those that the kernel knows, in use or not.
func (m Machine) Families() []dataplane.Family {
	if _, err := os.Stat(path.Join(m.Root, "proc/net/if_inet6")); err != nil {
		return []dataplane.Family{dataplane.IPv4}
	}
	return dataplane.Families()
}

// UsableFamilies are those that the kernel has not been told to do without.
func (m Machine) UsableFamilies() []dataplane.Family {
	if n, err := m.read("proc/sys/net/ipv6/conf/all/disable_ipv6"); err == nil && n != 0 {
		return []dataplane.Family{dataplane.IPv4}
	}
	return m.Families()
}

// CheckForwarding returns an error if the kernel does not pass on packets of a
// family, without which pods reach no Service.
func (m Machine) CheckForwarding(f dataplane.Family) error {
	name := "net/ipv4/ip_forward"
	if f == dataplane.IPv6 {
		name = "net/ipv6/conf/all/forwarding"
	}
	if n, err := m.read("proc/sys/" + name); err == nil && n == 0 {
		return fmt.Errorf("the kernel does not forward %s: set %s=1", f, strings.ReplaceAll(name, "/", "."))
	}
	return nil
}

func (m Machine) ensure(s setting) error {
	have, err := m.read(s.file)
	if err == nil && (have == s.value || s.atLeast && have > s.value) {
		return nil
	}
	if err == nil {
		err = os.WriteFile(path.Join(m.Root, s.file), []byte(strconv.Itoa(s.value)), 0o644)
	}
	var fail *os.PathError
	if errors.As(err, &fail) {
		err = fail.Err
	}
	if err != nil {
		return fmt.Errorf("set /%s to %d: %w", s.file, s.value, err)
	}
	return nil
}

func (m Machine) read(file string) (int, error) {
	data, err := os.ReadFile(path.Join(m.Root, file))
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		return 0, fmt.Errorf("/%s holds no number: %w", file, err)
	}
	return n, nil
}

// cpus counts the processors of the machine. runtime.NumCPU counts those that
// this process may use, which is less where CPUs are given out one by one.
func (m Machine) cpus() int {
	data, err := os.ReadFile(path.Join(m.Root, "sys/devices/system/cpu/online"))
	if err != nil {
		return runtime.NumCPU()
	}
	n := 0
	for part := range strings.SplitSeq(strings.TrimSpace(string(data)), ",") {
		first, last, isRange := strings.Cut(part, "-")
		a, err1 := strconv.Atoi(first)
		b := a
		var err2 error
		if isRange {
			b, err2 = strconv.Atoi(last)
		}
		if err1 != nil || err2 != nil {
			return runtime.NumCPU()
		}
		n += b - a + 1
	}
	return n
}
