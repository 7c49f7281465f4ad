package kernel_test

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/moby/ipvs"
	"golang.org/x/sys/unix"

	"github.com/portway/portway/modules/dataplane"
	"github.com/portway/portway/modules/ipvs/kernel"
)

// openMoby opens another implementation of the same messages, in the same
// namespace: it reads what we wrote, writes what others write, and is what the
// benchmarks compare with.
func openMoby(t testing.TB) *ipvs.Handle {
	t.Helper()
	h, err := ipvs.New("")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

func mobyService(k kernel.Key, scheduler string) *ipvs.Service {
	s := &ipvs.Service{
		AddressFamily: unix.AF_INET, Protocol: uint16(k.Protocol), Address: k.Addr.AsSlice(), Port: k.Port,
		SchedName: scheduler, Netmask: 0xffffffff,
	}
	if k.Family() == dataplane.IPv6 {
		s.AddressFamily, s.Netmask = unix.AF_INET6, 128
	}
	return s
}

func mobyReal(a netip.AddrPort, weight int) *ipvs.Destination {
	return &ipvs.Destination{Address: a.Addr().AsSlice(), Port: a.Port(), Weight: weight}
}

// TestAnotherReader lets another implementation read what we write.
func TestAnotherReader(t *testing.T) {
	for _, s := range samples {
		t.Run(s.family.String(), func(t *testing.T) {
			b := bench{openHost(t), s}
			moby := openMoby(t)
			k := b.key(dataplane.SCTP)
			b.apply(t, nil,
				kernel.Op{Verb: kernel.AddServer, Key: k, Server: kernel.Server{
					Scheduler: "mh", Persist: 90 * time.Second, Flags: kernel.HashPort,
				}},
				kernel.Op{Verb: kernel.AddReal, Key: k, Real: b.real, Weight: 7})
			services, err := moby.GetServices()
			if err != nil || len(services) != 1 {
				t.Fatalf("got %v, %v", services, err)
			}
			want := mobyService(k, "mh")
			want.Timeout, want.Flags = 90, 0x1|0x2|0x10
			got := *services[0]
			if !got.Address.Equal(want.Address) {
				t.Errorf("got address %s, want %s", got.Address, want.Address)
			}
			got.Stats, got.Address, want.Address = ipvs.SvcStats{}, nil, nil
			if !sameService(got, *want) {
				t.Errorf("got %+v, want %+v", got, *want)
			}
			reals, err := moby.GetDestinations(services[0])
			if err != nil || len(reals) != 1 {
				t.Fatalf("got %v, %v", reals, err)
			}
			d := reals[0]
			if !d.Address.Equal(net.IP(b.real.Addr().AsSlice())) || d.Port != b.real.Port() || d.Weight != 7 ||
				d.ConnectionFlags&ipvs.ConnectionFlagFwdMask != ipvs.ConnectionFlagMasq || d.UpperThreshold+d.LowerThreshold != 0 {
				t.Errorf("real server: got %+v", d)
			}
		})
	}
}

func sameService(a, b ipvs.Service) bool {
	return a.Protocol == b.Protocol && a.Port == b.Port && a.SchedName == b.SchedName && a.Flags == b.Flags &&
		a.Timeout == b.Timeout && a.Netmask == b.Netmask && a.AddressFamily == b.AddressFamily
}

// TestAnotherWriter reads what others write, and what we never write.
func TestAnotherWriter(t *testing.T) {
	for _, s := range samples {
		t.Run(s.family.String(), func(t *testing.T) {
			b := bench{openHost(t), s}
			moby := openMoby(t)
			service := mobyService(b.key(dataplane.TCP), "wlc")
			service.Flags, service.Timeout = 0x1, 300
			service.Netmask = 0x00ffffff // 255.255.255.0 in the byte order of the network
			if s.family == dataplane.IPv6 {
				service.Netmask = 24
			}
			marked := &ipvs.Service{AddressFamily: service.AddressFamily, FWMark: 7, SchedName: "rr", Netmask: service.Netmask}
			direct := mobyReal(b.real, 5)
			direct.ConnectionFlags, direct.UpperThreshold, direct.LowerThreshold = ipvs.ConnectionFlagDirectRoute, 20, 10
			for _, err := range []error{
				moby.NewService(service), moby.NewService(marked), moby.NewDestination(service, direct),
				moby.NewDestination(service, mobyReal(b.real2, 1)),
			} {
				if err != nil {
					t.Fatal(err)
				}
			}
			b.want(t, b.key(dataplane.TCP).String()+" -s wlc -p 300 -M 24",
				"  "+b.real.String()+" -g -w 5", "  "+b.real2.String()+" -m -w 1")
			got, ok, err := b.Get(t.Context(), b.key(dataplane.TCP))
			if r, found := got.Find(b.real); err != nil || !ok || !found || r.String() != b.real.String()+" -g -w 5 -x 20 -y 10" {
				t.Errorf("got %v, %v, %v: %v", got, ok, err, r)
			}
			// Set makes it ours.
			b.apply(t, nil, kernel.Op{Verb: kernel.SetServer, Key: b.key(dataplane.TCP), Server: rr()},
				kernel.Op{Verb: kernel.SetReal, Key: b.key(dataplane.TCP), Real: b.real, Weight: 2})
			b.want(t, b.key(dataplane.TCP).String()+" -s rr", "  "+b.real.String()+" -m -w 2", "  "+b.real2.String()+" -m -w 1")
			if left, err := moby.GetServices(); err != nil || len(left) != 2 {
				t.Errorf("the one with a mark: got %v, %v", left, err)
			}
		})
	}
}
