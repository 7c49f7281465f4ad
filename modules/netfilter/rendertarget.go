package netfilter

import "strconv"

func (t *Target) append(b []byte) []byte {
	switch t.Kind {
	case NoTarget:
		return b
	case TargetGoto:
		return append(append(b, " -g "...), t.Name...)
	}
	b = append(b, " -j "...)
	switch t.Kind {
	case TargetJump:
		return append(b, t.Name...)
	case TargetReject:
		return append(append(b, "REJECT --reject-with "...), t.Name...)
	case TargetDNAT:
		return t.appendTo(append(b, "DNAT --to-destination "...))
	case TargetSNAT:
		return t.appendTo(append(b, "SNAT --to-source "...))
	case TargetNetmap:
		b = appendIP(append(b, "NETMAP --to "...), t.Net.Addr())
		return strconv.AppendInt(append(b, '/'), int64(t.Net.Bits()), 10)
	case TargetRedirect:
		return t.appendRedirect(b)
	case TargetMark:
		b = appendHex(append(b, "MARK --set-xmark "...), t.Value)
		return appendHex(append(b, '/'), t.Mask)
	case TargetMasquerade:
		b = append(b, "MASQUERADE"...)
		if t.RandomFully {
			b = append(b, " --random-fully"...)
		}
		return b
	case TargetAddSet, TargetDelSet, TargetMapMark:
		return t.appendSet(b)
	}
	return append(b, verdictName(t.Kind)...)
}

func verdictName(k TargetKind) string {
	switch k {
	case TargetAccept:
		return "ACCEPT"
	case TargetDrop:
		return "DROP"
	case TargetReturn:
		return "RETURN"
	}
	return ""
}

func (t *Target) appendTo(b []byte) []byte {
	a, port := t.To.Addr(), t.To.Port()
	switch {
	case port == 0:
		return appendIP(b, a)
	case a.Is4():
		b = append(a.AppendTo(b), ':')
	default:
		b = appendIP(append(b, '['), a)
		b = append(b, "]:"...)
	}
	return strconv.AppendUint(b, uint64(port), 10)
}

func (t *Target) appendRedirect(b []byte) []byte {
	b = append(b, "REDIRECT"...)
	if t.To.Port() == 0 {
		return b
	}
	return strconv.AppendUint(append(b, " --to-ports "...), uint64(t.To.Port()), 10)
}

func (t *Target) appendSet(b []byte) []byte {
	option := " --add-set "
	switch t.Kind {
	case TargetDelSet:
		option = " --del-set "
	case TargetMapMark:
		option = " --map-set "
	}
	b = append(append(b, "SET"...), option...)
	b = append(append(b, t.Name...), ' ')
	b = append(b, t.Parts...)
	if t.Kind == TargetMapMark {
		return append(b, " --map-mark"...)
	}
	if t.Exist {
		b = append(b, " --exist"...)
	}
	if t.Timeout != 0 {
		b = strconv.AppendUint(append(b, " --timeout "...), uint64(t.Timeout), 10)
	}
	return b
}
