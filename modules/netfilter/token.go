package netfilter

// words splits a line of iptables-save into words. A word without quotes is
// a part of the line itself, so nothing is copied.
type words struct {
	rest    []byte
	scratch []byte
	quoted  bool
}

// next returns the next word; it is valid until the call after it. At the
// end of the line, and where quotes do not end, it returns nil.
func (w *words) next() []byte {
	w.quoted = false
	for len(w.rest) > 0 && w.rest[0] == ' ' {
		w.rest = w.rest[1:]
	}
	if len(w.rest) == 0 {
		return nil
	}
	if w.rest[0] == '"' {
		return w.unquote()
	}
	end := 0
	for end < len(w.rest) && w.rest[end] != ' ' {
		end++
	}
	word := w.rest[:end]
	w.rest = w.rest[end:]
	return word
}

func (w *words) unquote() []byte {
	w.quoted = true
	w.scratch = w.scratch[:0]
	for i := 1; i < len(w.rest); i++ {
		switch c := w.rest[i]; c {
		case '"':
			w.rest = w.rest[i+1:]
			if w.scratch == nil {
				return []byte{}
			}
			return w.scratch
		case '\\':
			i++
			if i < len(w.rest) {
				w.scratch = append(w.scratch, w.rest[i])
			}
		default:
			w.scratch = append(w.scratch, c)
		}
	}
	w.rest = nil
	return nil
}
