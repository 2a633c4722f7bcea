// Two goroutines look into a map, read a file and fill the map, without a lock.
package main

import (
	"fmt"
	"os"
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
	text, err := os.ReadFile(name)
	if err != nil {
		panic(err)
	}
	c.loads++
	c.sizes[name] = len(text)
	return len(text)
}

func main() {
	c := &cache{sizes: map[string]int{}}
	var group sync.WaitGroup
	for i := 0; i < 2; i++ {
		group.Add(1)
		go func() {
			defer group.Done()
			c.size("/tmp/names")
		}()
	}
	group.Wait()
	fmt.Println("loads", c.loads)
}
