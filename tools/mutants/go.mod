module github.com/tenure-go/tenure/tools/mutants

go 1.26.0
