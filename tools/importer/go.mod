module github.com/tenure-go/tenure/tools/importer

go 1.26.0
