// Goroutines on four threads with garbage collection running all the time: the collector spins in user space.
package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sort"
	"strings"
	"sync"
)

type node struct {
	left, right *node
	name        string
}

func tree(depth int) *node {
	if depth == 0 {
		return &node{name: strings.Repeat("x", 16)}
	}
	return &node{tree(depth - 1), tree(depth - 1), fmt.Sprint(depth)}
}

func (n *node) count() int {
	if n == nil {
		return 0
	}
	return 1 + n.left.count() + n.right.count()
}

func main() {
	debug.SetGCPercent(10)
	fmt.Println("GOMAXPROCS", runtime.GOMAXPROCS(0))
	var wait sync.WaitGroup
	results := make([]int, 8)
	for worker := range results {
		wait.Add(1)
		go func(worker int) {
			defer wait.Done()
			for round := 0; round < 4; round++ {
				results[worker] += tree(9 + worker%3).count()
			}
		}(worker)
	}
	wait.Wait()
	sort.Ints(results)
	fmt.Println(results)
	messages := make(chan int, 3)
	go func() {
		for i := 0; i < 1000; i++ {
			messages <- i
		}
		close(messages)
	}()
	sum := 0
	for message := range messages {
		sum += message
	}
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	fmt.Println("sum", sum, "collected more than ten times:", stats.NumGC > 10)
}
