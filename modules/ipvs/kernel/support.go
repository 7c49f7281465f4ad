package kernel

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/portway/portway/modules/dataplane"
)

var errNoDummy = errors.New("the kernel has no dummy devices: load the module dummy (modprobe dummy)")

// Support tells whether this machine has what the mode needs for a family:
// IPVS, the schedulers, and dummy devices. It tries, in a network namespace of
// its own, so that nothing that serves is touched and modules load as they
// would. A process that may not make one (it needs CAP_SYS_ADMIN) looks at what
// is there, and cannot tell about schedulers. The error says in a sentence what
// is missing and what to do about it.
func Support(ctx context.Context, f dataplane.Family, schedulers ...string) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		switch err := unix.Unshare(unix.CLONE_NEWNET); {
		case errors.Is(err, unix.EPERM):
			result <- look(ctx)
		case err != nil:
			result <- fmt.Errorf("making a network namespace to try IPVS in: %w", err)
		default:
			result <- try(ctx, f, schedulers)
		}
	}()
	return <-result
}

// look does without a namespace of its own, and leaves everything as it is.
func look(ctx context.Context) error {
	h, err := Open(ctx)
	if err != nil {
		return err
	}
	defer h.Close()
	return errors.Join(tracksConnections(), Dummy{}.possible())
}

// tracksConnections tells whether IPVS works together with conntrack.
func tracksConnections() error {
	if _, err := ProcSys("").Read("net/ipv4/vs/conntrack"); err != nil {
		return fmt.Errorf("IPVS of this kernel cannot track connections (%w): it needs CONFIG_IP_VS_NFCT", err)
	}
	return nil
}

// try uses everything once.
func try(ctx context.Context, f dataplane.Family, schedulers []string) error {
	h, err := Open(ctx)
	if err != nil {
		return err
	}
	defer h.Close()
	var errs []error
	for i, s := range schedulers {
		errs = append(errs, tryScheduler(ctx, h, f, uint16(i+1), s))
	}
	errs = append(errs, tracksConnections())
	if _, err := (Dummy{}).Ensure(ctx); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func tryScheduler(ctx context.Context, h *Host, f dataplane.Family, port uint16, scheduler string) error {
	addr := netip.AddrFrom4([4]byte{192, 0, 2, 1})
	if f == dataplane.IPv6 {
		addr = netip.MustParseAddr("2001:db8::1")
	}
	k := Key{Protocol: dataplane.TCP, Addr: addr, Port: port}
	refused, err := h.Apply(ctx, []Op{{Verb: AddServer, Key: k, Server: Server{Scheduler: scheduler}}})
	switch {
	case err != nil:
		return err
	case len(refused) == 0:
		return nil
	case errors.Is(&refused[0], ErrScheduler):
		return fmt.Errorf("the kernel has no IPVS scheduler %q: load its module (modprobe ip_vs_%s) or choose another", scheduler, scheduler)
	case errors.Is(&refused[0], unix.EAFNOSUPPORT):
		return fmt.Errorf("IPVS of this kernel does not know %s: it needs CONFIG_IP_VS_%s", f, f)
	}
	return &refused[0]
}
