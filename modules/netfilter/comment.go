package netfilter

import (
	"strings"
	"unicode/utf8"
)

// maxComment is what the comment match of the kernel holds.
const maxComment = 255

// Comment makes a text fit for a rule's comment: one line of valid UTF-8
// that is cut where the kernel would refuse it.
func Comment(text string) string {
	clean := strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f || c == utf8.RuneError {
			return ' '
		}
		return c
	}, text)
	if len(clean) <= maxComment {
		return clean
	}
	end := maxComment
	for !utf8.RuneStart(clean[end]) {
		end--
	}
	return clean[:end]
}

func appendComment(b []byte, text string) []byte {
	if text == "" {
		return b
	}
	b = append(b, " -m comment --comment "...)
	return appendQuoted(b, text)
}

// appendQuoted quotes as iptables-save does: only where it must.
func appendQuoted(b []byte, text string) []byte {
	if isPlain(text) {
		return append(b, text...)
	}
	b = append(b, '"')
	for i := range len(text) {
		switch text[i] {
		case '"', '\\', '\'':
			b = append(b, '\\')
		}
		b = append(b, text[i])
	}
	return append(b, '"')
}

func isPlain(text string) bool {
	for i := range len(text) {
		c := text[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-':
		default:
			return false
		}
	}
	return text != ""
}
