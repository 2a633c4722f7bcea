module rewind

go 1.19
