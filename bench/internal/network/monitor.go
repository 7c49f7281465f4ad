package network

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Told is how many messages there were.
type Told struct {
	Rules int // about rules that came and stayed, or went that had been there
	All   int // about tables, chains, sets and rules
}

// Monitor counts what nftables tells about changes of a namespace.
type Monitor struct {
	socket *nl.NetlinkSocket
	stop   chan struct{}
	ended  chan struct{}
	all    int
	came   map[rule]bool
	went   int
	err    error
}

// rule is what names a rule as long as it lives.
type rule struct {
	family byte
	table  string
	handle uint64
}

// monitorBuffer holds what one large write tells at once.
const monitorBuffer = 256 << 20

const (
	// newGeneration ends each write of nftables; it comes without any change too.
	newGeneration = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWGEN
	newRule       = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWRULE
	deletedRule   = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_DELRULE
)

// MonitorNFTables begins to count.
func MonitorNFTables(h *Host) (*Monitor, error) {
	m := &Monitor{came: make(map[rule]bool), stop: make(chan struct{}), ended: make(chan struct{})}
	err := h.Do(func() (err error) {
		m.socket, err = nl.Subscribe(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: listen to nftables: %w", h.name, err)
	}
	err = errors.Join(
		m.socket.SetReceiveBufferSize(monitorBuffer, true),
		m.socket.SetReceiveTimeout(&unix.Timeval{Usec: 100_000}), // Close must not wait for a message that never comes
	)
	if err != nil {
		m.socket.Close()
		return nil, fmt.Errorf("%s: listen to nftables: %w", h.name, err)
	}
	go m.read()
	return m, nil
}

func (m *Monitor) read() {
	defer close(m.ended)
	for {
		messages, _, err := m.socket.Receive()
		switch {
		case errors.Is(err, unix.EAGAIN):
			select {
			case <-m.stop:
				return
			default:
			}
		case errors.Is(err, unix.EINTR):
		case err != nil:
			m.err = fmt.Errorf("listen to nftables: %w", err)
			return
		}
		for _, message := range messages {
			if message.Header.Type == newGeneration {
				continue
			}
			m.all++
			if err := m.follow(message.Header.Type, message.Data); err != nil {
				m.err = err
				return
			}
		}
	}
}

// Close returns what was told.
func (m *Monitor) Close() (Told, error) {
	close(m.stop)
	<-m.ended
	m.socket.Close()
	return Told{Rules: len(m.came) + m.went, All: m.all}, m.err
}

// follow notes a rule that comes or goes. What came and went meanwhile is nothing
// that has changed: it was a try.
func (m *Monitor) follow(kind uint16, data []byte) error {
	if kind != newRule && kind != deletedRule {
		return nil
	}
	attributes, err := nl.ParseRouteAttr(data[nl.SizeofNfgenmsg:])
	if err != nil {
		return fmt.Errorf("a message of nftables about a rule: %w", err)
	}
	r := rule{family: data[0]}
	for _, a := range attributes {
		switch a.Attr.Type & nl.NLA_TYPE_MASK {
		case unix.NFTA_RULE_TABLE:
			r.table = string(a.Value)
		case unix.NFTA_RULE_HANDLE:
			r.handle = binary.BigEndian.Uint64(a.Value)
		}
	}
	switch {
	case kind == newRule:
		m.came[r] = true
	case m.came[r]:
		delete(m.came, r)
	default:
		m.went++
	}
	return nil
}
