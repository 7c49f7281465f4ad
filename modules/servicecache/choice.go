package servicecache

import "github.com/portway/portway/modules/dataplane"

// choice is one way to choose among candidates, and the words for it.
type choice struct {
	what  string
	takes func(*candidate) bool
	// lacks says what a candidate lacks that is not taken.
	lacks func(*candidate) string
}

// choices are those of a scope, best first: the one that finds any counts. For
// Cluster that is the ready ones, narrowed by hints; for Local those on this
// node, cut out first, without regard to hints. Then come those that terminate
// and still serve (KEP-1669).
func choices(s dataplane.Scope, cs []candidate, zone string) [2]choice {
	if s == dataplane.Local {
		return [2]choice{readyOnes().among(onThisNode()), terminatingOnes().among(onThisNode())}
	}
	return [2]choice{readyOnes().among(near(cs, zone)), terminatingOnes()}
}

// among narrows a choice by another one; the zero choice does not.
func (c choice) among(by choice) choice {
	if by.takes == nil {
		return c
	}
	return choice{
		what:  c.what + " " + by.what,
		takes: func(e *candidate) bool { return by.takes(e) && c.takes(e) },
		lacks: func(e *candidate) string {
			if !c.takes(e) {
				return c.lacks(e)
			}
			return by.lacks(e)
		},
	}
}

func readyOnes() choice {
	return choice{
		what:  "ready endpoints",
		takes: func(c *candidate) bool { return c.ready },
		lacks: func(c *candidate) string {
			if c.terminates() {
				return "it terminates, and is the second choice"
			}
			return "it is not ready"
		},
	}
}

func terminatingOnes() choice {
	return choice{
		what:  "terminating endpoints that still serve (none is ready)",
		takes: func(c *candidate) bool { return c.terminates() },
		lacks: func(c *candidate) string {
			if !c.serving {
				return "it does not serve"
			}
			return "it is not ready"
		},
	}
}

func onThisNode() choice {
	return choice{
		what:  "on this node",
		takes: func(c *candidate) bool { return c.local },
		lacks: func(*candidate) string { return "it is not on this node" },
	}
}

// near reads the hints of the ready candidates: if each has hints for nodes and
// one names this node, those that name it; likewise for zones; else all, which
// is the zero choice. A hint that is missing anywhere means that the control
// plane is not done, and following the others would overload them.
func near(cs []candidate, zone string) choice {
	allNodes, thisNode, allZones, thisZone := true, false, zone != "", false
	for i := range cs {
		c := &cs[i]
		if !c.ready {
			continue
		}
		allNodes = allNodes && c.nodeHints
		thisNode = thisNode || c.hintsNode
		allZones = allZones && c.zones.any()
		thisZone = thisZone || allZones && c.zones.has(zone)
	}
	switch {
	case allNodes && thisNode:
		return choice{
			what:  "that hints give to this node",
			takes: func(c *candidate) bool { return c.hintsNode },
			lacks: func(*candidate) string { return "its hints give it to other nodes" },
		}
	case allZones && thisZone:
		return choice{
			what:  "that hints give to zone " + zone,
			takes: func(c *candidate) bool { return c.zones.has(zone) },
			lacks: func(*candidate) string { return "its hints give it to other zones" },
		}
	}
	return choice{}
}
