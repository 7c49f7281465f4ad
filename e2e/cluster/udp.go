package cluster

import (
	"context"
	"net"
	"time"
)

// UDP is a client outside that keeps its socket, and so its flow.
type UDP struct{ net.Conn }

// OpenUDP opens a socket to host and port.
func OpenUDP(ctx context.Context, target string) (*UDP, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "udp", target)
	if err != nil {
		return nil, err
	}
	return &UDP{conn}, nil
}

// Ask sends one packet and returns the answer.
func (u *UDP) Ask(what string) (string, error) {
	if err := u.SetDeadline(time.Now().Add(patience)); err != nil {
		return "", err
	}
	if _, err := u.Write([]byte(what)); err != nil {
		return "", ending(err)
	}
	buf := make([]byte, 2048)
	n, err := u.Read(buf)
	if err != nil {
		return "", ending(err)
	}
	return string(buf[:n]), nil
}
