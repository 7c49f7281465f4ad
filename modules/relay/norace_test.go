//go:build !race

package relay

// memoryFactor is how many times the memory the race detector needs at most.
const memoryFactor = 1
