package tenure_test

import (
	"maps"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// goPackage is what go list tells of a package, its tests aside.
type goPackage struct {
	module  string // "" for the standard library
	imports []string
}

// goPackages are packages and all that they are made of, by their import paths.
type goPackages map[string]goPackage

// modules returns the modules that a package is made of, each with one of their
// packages that it needs.
func (all goPackages) modules(path string) map[string]string {
	modules := make(map[string]string)
	seen := make(map[string]bool)
	var visit func(path string)
	visit = func(path string) {
		pkg := all[path]
		if seen[path] || pkg.module == "" {
			return
		}
		seen[path] = true
		modules[pkg.module] = path
		for _, imported := range pkg.imports {
			visit(imported)
		}
	}
	visit(path)
	return modules
}

func goList(t *testing.T, patterns ...string) goPackages {
	t.Helper()
	format := `{{.ImportPath}}|{{with .Module}}{{.Path}}{{end}}|{{join .Imports " "}}`
	out, err := exec.Command("go", append([]string{"list", "-deps", "-f", format}, patterns...)...).Output()
	require.NoError(t, err)
	packages := make(goPackages)
	for line := range strings.Lines(string(out)) {
		parts := strings.Split(line, "|")
		packages[parts[0]] = goPackage{module: parts[1], imports: strings.Fields(parts[2])}
	}
	return packages
}

// What an importer of the library links is what etcd's client brings already.
// Only the collector may link the Prometheus client besides. The test harness
// links the etcd server, and only tests import it.
func TestLibraryBringsNoDependencyOfItsOwn(t *testing.T) {
	const (
		self       = "github.com/tenure-go/tenure"
		harness    = self + "/internal/etcdtest"
		etcd       = "go.etcd.io/etcd/client/v3"
		prometheus = "github.com/prometheus/client_golang/prometheus"
	)
	packages := goList(t, "./...", etcd, prometheus)
	require.Contains(t, packages, self)
	free := packages.modules(etcd)
	require.Contains(t, free, "google.golang.org/grpc")
	free[self] = etcd
	withMetrics := maps.Clone(free)
	maps.Copy(withMetrics, packages.modules(prometheus))

	for path, pkg := range packages {
		if pkg.module != self || path == harness {
			continue
		}
		allowed := free
		if path == self+"/metrics" {
			allowed = withMetrics
		}
		for module, by := range packages.modules(path) {
			require.Contains(t, allowed, module, "%s depends on it, by %s, and %s does not", path, by, etcd)
		}
		require.NotContains(t, pkg.imports, harness, path)
	}
}
