package kernel_test

import (
	"testing"

	"github.com/portway/portway/modules/ipvs/kernel"
	"github.com/portway/portway/modules/ipvs/kernel/kerneltest"
)

func TestServersInMemory(t *testing.T) {
	tryBehaviours(t, func(*testing.T) kernel.Servers { return kerneltest.NewServers() })
}
