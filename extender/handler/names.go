package handler

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"unicode/utf8"

	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"github.com/layer-locality/layer-locality/extender/agent"
)

// Names of nodes are nearly all of a request and of its answer. encoding/json takes longer for
// them than agents do for their scores, so they are read and written here.

// namesKey begins the names of nodes in a request.
var namesKey = []byte(`"NodeNames":[`)

// decodeNames decodes a request that ends with plain names of nodes, as kube-scheduler sends it.
// ok is false for all others, valid or not.
func decodeNames(body []byte, args *extenderv1.ExtenderArgs) (ok bool) {
	begin := bytes.LastIndex(body, namesKey)
	if begin < 0 {
		return false
	}
	begin += len(namesKey)
	list, ok := bytes.CutSuffix(bytes.TrimRight(body[begin:], "\r\n\t "), []byte("]}"))
	if !ok {
		return false
	}
	// What is before the names decides whether they are those of the request: with them left
	// out, it is valid, and has such a list.
	names, ok := split(string(list))
	if !ok || json.Unmarshal(append(bytes.Clone(body[:begin]), "]}"...), args) != nil || args.NodeNames == nil {
		return false
	}
	args.NodeNames = &names
	return true
}

// split returns the elements of a JSON list of plain texts, which is given without brackets.
func split(list string) (names []string, ok bool) {
	names = make([]string, 0, strings.Count(list, ",")+1)
	for list != "" {
		end := 1
		for end < len(list) && plain(list[end]) {
			end++
		}
		if list[0] != '"' || end == len(list) || list[end] != '"' {
			return nil, false
		}
		names, list = append(names, list[1:end]), list[end+1:]
		if list != "" {
			if list[0] != ',' || len(list) == 1 {
				return nil, false
			}
			list = list[1:]
		}
	}
	return names, true
}

// plain reports whether a byte stands for itself in a JSON text, whoever writes it.
func plain(c byte) bool {
	return c >= ' ' && c < utf8.RuneSelf && c != '"' && c != '\\' && c != '<' && c != '>' && c != '&'
}

// appendText appends a JSON text.
func appendText(to []byte, text string) []byte {
	for i := range len(text) {
		if !plain(text[i]) {
			encoded, _ := json.Marshal(text) // a text has no error
			return append(to, encoded...)
		}
	}
	return append(append(append(to, '"'), text...), '"')
}

// encodePriorities returns a HostPriorityList in JSON.
func encodePriorities(names []string, scores []int64) []byte {
	answer := append(make([]byte, 0, 64*len(names)), '[')
	for i, name := range names {
		answer = append(answer, `{"Host":`...)
		answer = appendText(answer, name)
		answer = append(answer, `,"Score":`...)
		answer = strconv.AppendInt(answer, scores[i], 10)
		answer = append(answer, '}', ',')
	}
	return end(answer, ']')
}

// encodeFiltered returns an ExtenderFilterResult with names in JSON.
func encodeFiltered(names []string, rejections []agent.Rejection) []byte {
	answer := append(make([]byte, 0, 128*len(names)), `{"Nodes":null,"NodeNames":[`...)
	for i, name := range names {
		if rejections[i].Reason == "" {
			answer = append(appendText(answer, name), ',')
		}
	}
	answer = append(end(answer, ']'), `,"FailedNodes":{`...)
	failed := func(unresolvable bool) {
		for i, name := range names {
			if r := &rejections[i]; r.Reason != "" && r.Unresolvable == unresolvable {
				answer = append(appendText(answer, name), ':')
				answer = append(appendText(answer, r.Reason), ',')
			}
		}
		answer = end(answer, '}')
	}
	failed(false)
	answer = append(answer, `,"FailedAndUnresolvableNodes":{`...)
	failed(true) // no preemption there
	return append(answer, `,"Error":""}`...)
}

// end ends a list or an object, whose elements each have a comma behind them.
func end(list []byte, bracket byte) []byte {
	return append(bytes.TrimSuffix(list, []byte{','}), bracket)
}
