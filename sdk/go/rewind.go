// Package rewind has assertions and marks for programs that run inside Rewind; no-ops outside it.
//
// SPDX-License-Identifier: MIT
package rewind

import (
	"encoding/json"
	"os"
	"runtime"
	"sync"
)

// longest is the longest line /dev/rewind takes, in bytes.
const longest = 2000

var (
	once   sync.Once
	device *os.File
)

func open() *os.File {
	once.Do(func() {
		if f, err := os.OpenFile("/dev/rewind", os.O_WRONLY, 0); err == nil {
			device = f
		}
	})
	return device
}

// Inside reports whether the program runs inside Rewind.
func Inside() bool { return open() != nil }

type body struct {
	Kind     string         `json:"kind,omitempty"`
	Name     string         `json:"name"`
	Holds    bool           `json:"holds"`
	File     string         `json:"file"`
	Line     int            `json:"line"`
	Function string         `json:"function"`
	Details  map[string]any `json:"details,omitempty"`
}

func send(key, kind string, holds bool, name string, details map[string]any) {
	f := open()
	if f == nil {
		return
	}
	b := body{Kind: kind, Name: name, Holds: holds, Details: details}
	if pc, file, line, ok := runtime.Caller(2); ok {
		b.File, b.Line = file, line
		if fn := runtime.FuncForPC(pc); fn != nil {
			b.Function = fn.Name()
		}
	}
	text, err := json.Marshal(map[string]body{key: b})
	if err != nil || len(text) >= longest {
		b.Details = map[string]any{"cut": true}
		if text, err = json.Marshal(map[string]body{key: b}); err != nil {
			return
		}
	}
	// A program under test must not fail because its report did.
	_, _ = f.Write(append(text, '\n'))
}

// Always demands that holds is true each time it is reached.
func Always(holds bool, name string, details map[string]any) { send("property", "always", holds, name, details) }

// Sometimes demands that holds is true at least once over all schedules.
func Sometimes(holds bool, name string, details map[string]any) {
	send("property", "sometimes", holds, name, details)
}

// Reachable demands that it is reached at least once over all schedules.
func Reachable(name string, details map[string]any) { send("property", "reachable", true, name, details) }

// Unreachable demands that it is never reached.
func Unreachable(name string, details map[string]any) {
	send("property", "unreachable", false, name, details)
}

// Mark names a place on the timeline.
func Mark(name string, details map[string]any) { send("mark", "", true, name, details) }
