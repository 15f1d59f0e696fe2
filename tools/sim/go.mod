module github.com/tenure-go/tenure/tools/sim

go 1.26.0
