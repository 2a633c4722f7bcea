// Goroutines look into a map and fill it, without a lock.
package main

import (
	"fmt"
	"sync"
)

type cache struct {
	sizes map[string]int
	loads int
}

func (c *cache) size(name string) int {
	if size, ok := c.sizes[name]; ok {
		return size
	}
	c.loads++
	c.sizes[name] = len(name)
	return len(name)
}

func main() {
	c := &cache{sizes: map[string]int{}}
	var group sync.WaitGroup
	for i := 0; i < 4; i++ {
		group.Add(1)
		go func() {
			defer group.Done()
			c.size("hosts")
		}()
	}
	group.Wait()
	fmt.Println("loads", c.loads)
}
