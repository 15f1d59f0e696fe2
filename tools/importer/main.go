// Command importer measures what a program pays for importing the library: lines
// of go.sum, modules whose version is raised, modules and bytes in its binary.
//
//	go run -C tools/importer .
//
// It makes two programs that differ in nothing else: one writes to etcd with
// client/v3, the other one does so under a term. Both select the client at the
// version that the library requires.
package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
)

const (
	plain = `package main

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
)

func main() {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:2379"}})
	if err != nil {
		panic(err)
	}
	if _, err := client.Put(context.Background(), "job", "done"); err != nil {
		panic(err)
	}
}
`
	elected = `package main

import (
	"context"

	"github.com/tenure-go/tenure"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func main() {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:2379"}})
	if err != nil {
		panic(err)
	}
	elector, err := tenure.New(client, "/scheduler/leader", nil)
	if err != nil {
		panic(err)
	}
	err = elector.Run(context.Background(), func(ctx context.Context, term *tenure.Term) error {
		_, err := term.KV(client).Put(ctx, "job", "done")
		return err
	})
	if err != nil {
		panic(err)
	}
}
`
)

// A cost is what one program consists of.
type cost struct {
	sums     int               // lines of go.sum
	selected map[string]string // module to version, of the whole graph
	linked   map[string]bool   // modules in the binary
	bytes    int64             // of the binary, stripped
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "importer:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	root, err := filepath.Abs("../..")
	if err != nil {
		return err
	}
	client, err := goOutput(ctx, root, "list", "-m", "-f", "{{.Version}}", "go.etcd.io/etcd/client/v3")
	if err != nil {
		return err
	}
	require := "\nrequire go.etcd.io/etcd/client/v3 " + strings.TrimSpace(client) + "\n"
	without, err := build(ctx, plain, require)
	if err != nil {
		return err
	}
	const self = "github.com/tenure-go/tenure"
	with, err := build(ctx, elected, require+"\nrequire "+self+" v0.0.0\n\nreplace "+self+" => "+root+"\n")
	if err != nil {
		return err
	}
	delete(with.selected, self)
	delete(with.linked, self)

	var raised, linked []string
	for module, version := range with.selected {
		if before, ok := without.selected[module]; ok && before != version {
			raised = append(raised, fmt.Sprintf("%s %s -> %s", module, before, version))
		}
	}
	for module := range with.linked {
		if !without.linked[module] {
			linked = append(linked, module)
		}
	}
	fmt.Printf("%-28s %10s %10s %10s\n", "", "client/v3", "and tenure", "more")
	row := func(name string, a, b int64) { fmt.Printf("%-28s %10d %10d %10d\n", name, a, b, b-a) }
	row("lines of go.sum", int64(without.sums), int64(with.sums))
	row("modules in the graph", int64(len(without.selected)), int64(len(with.selected)))
	row("other modules in the binary", int64(len(without.linked)), int64(len(with.linked)))
	row("bytes of the binary", without.bytes, with.bytes)
	list("versions raised", raised)
	list("modules linked in addition", linked)
	return nil
}

func list(title string, lines []string) {
	slices.Sort(lines)
	fmt.Printf("%s: %d\n", title, len(lines))
	for _, line := range lines {
		fmt.Println("  " + line)
	}
}

// build makes a module of one program, builds it, and says what it consists of.
func build(ctx context.Context, source, require string) (cost, error) {
	var c cost
	dir, err := os.MkdirTemp("", "tenure-importer-")
	if err != nil {
		return c, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	for name, text := range map[string]string{"main.go": source, "go.mod": "module example.invalid/program\n\ngo 1.26.0\n" + require} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return c, err
		}
	}
	if _, err := goOutput(ctx, dir, "mod", "tidy"); err != nil {
		return c, err
	}
	sums, err := os.ReadFile(filepath.Join(dir, "go.sum"))
	if err != nil {
		return c, err
	}
	c.sums = bytes.Count(sums, []byte("\n"))
	graph, err := goOutput(ctx, dir, "list", "-m", "-f", "{{.Path}} {{.Version}}", "all")
	if err != nil {
		return c, err
	}
	c.selected = make(map[string]string)
	for line := range strings.Lines(graph) {
		if fields := strings.Fields(line); len(fields) == 2 { // the program itself has no version
			c.selected[fields[0]] = fields[1]
		}
	}
	if _, err := goOutput(ctx, dir, "build", "-trimpath", "-ldflags=-s -w", "-o", "program", "."); err != nil {
		return c, err
	}
	info, err := os.Stat(filepath.Join(dir, "program"))
	if err != nil {
		return c, err
	}
	c.bytes = info.Size()
	parts, err := goOutput(ctx, dir, "version", "-m", "program")
	if err != nil {
		return c, err
	}
	c.linked = make(map[string]bool)
	for line := range strings.Lines(parts) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "dep" {
			c.linked[fields[1]] = true
		}
	}
	return c, nil
}

func goOutput(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, stderr.Bytes())
	}
	return string(out), nil
}
