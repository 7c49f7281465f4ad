// Package answer is what the agent and portwayctl tell each other, and people,
// about flows and differences: questions in words, answers as JSON. It decides
// nothing.
package answer
