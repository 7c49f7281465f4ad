package servicecache

import (
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// A Problem is a part of an object that is not served as it asks. It is told
// once, when it comes up; the rest of the object works.
type Problem struct {
	Object  ObjectRef
	Reason  Reason
	Field   string // such as "spec.externalIPs"
	Message string // a sentence for the object's owner
}

// ObjectRef names an object so that an Event can refer to it.
type ObjectRef struct {
	Kind, APIVersion, Namespace, Name string
	UID                               types.UID
}

// Reason is the kind of a Problem, spelt as reasons of Events are.
type Reason string

// The reasons.
const (
	AddressConflict Reason = "AddressConflict"
	AddressRefused  Reason = "AddressRefused"
	FamilySkipped   Reason = "FamilySkipped"
	InvalidAddress  Reason = "InvalidAddress"
	InvalidRange    Reason = "InvalidSourceRange"
	InvalidPort     Reason = "InvalidPort"
	NotProgrammable Reason = "NotProgrammable"
)

// String returns the problem in a line.
func (p Problem) String() string {
	name := strings.TrimPrefix(p.Object.Namespace+"/"+p.Object.Name, "/")
	return p.Object.Kind + " " + name + ": " + p.Field + ": " + p.Message
}

// problems collects what is wrong with one object.
type problems struct {
	object ObjectRef
	list   []Problem
}

// maxProblems keeps one bad object from making a flood of Events.
const maxProblems = 10

func (p *problems) add(r Reason, field, message string) {
	if len(p.list) < maxProblems {
		p.list = append(p.list, Problem{p.object, r, field, message})
	}
}

// news returns those that are not among the old ones.
func news(old, now []Problem) []Problem {
	known := make(map[Problem]bool, len(old))
	for _, p := range old {
		known[p] = true
	}
	var fresh []Problem
	for _, p := range now {
		if !known[p] {
			known[p] = true
			fresh = append(fresh, p)
		}
	}
	return fresh
}
