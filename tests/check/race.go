// Two goroutines deposit without a lock.
package main

import (
	"fmt"
	"sync"
)

// In one instruction a sum could not be torn on one CPU.
//
//go:noinline
func sum(balance, amount int) int { return balance + amount }

func main() {
	balance := 0
	var group sync.WaitGroup
	for i := 0; i < 2; i++ {
		group.Add(1)
		go func() {
			defer group.Done()
			for n := 0; n < 20; n++ {
				balance = sum(balance, 10)
			}
		}()
	}
	group.Wait()
	fmt.Println(balance)
}
