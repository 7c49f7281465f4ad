package network

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Told is how many messages there were.
type Told struct {
	Rules int // about rules that came or went
	All   int // about tables, chains and sets too
}

// Monitor counts what nftables tells about changes of a namespace.
type Monitor struct {
	socket *nl.NetlinkSocket
	stop   chan struct{}
	ended  chan struct{}
	told   Told
	err    error
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
	m := &Monitor{stop: make(chan struct{}), ended: make(chan struct{})}
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
			switch message.Header.Type {
			case newGeneration:
				continue
			case newRule, deletedRule:
				m.told.Rules++
			}
			m.told.All++
		}
	}
}

// Close returns what was told.
func (m *Monitor) Close() (Told, error) {
	close(m.stop)
	<-m.ended
	m.socket.Close()
	return m.told, m.err
}
