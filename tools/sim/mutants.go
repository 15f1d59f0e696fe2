package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// A mutant is one deliberate fault of the library.
type mutant struct{ name, file, old, new string }

// safety names the mutants of tools/mutants that put a promise of safety at
// risk, as far as one server and its clients can show it.
var safety = []string{
	"deadline counted from the answer",
	"margin dropped",
	"margin of the grant dropped",
	"wall clock ignored",
	"read after the renewal dropped",
	"Raft term not compared",
	"falsified TTL believed",
	"stream kept after an attempt without an answer",
	"compare dropped from the create",
	"identity instead of candidate id",
	"epoch not compared with the floor",
	"resign under no condition",
	"own key not watched",
	"only deletions looked at",
	"roll-back of etcd not noticed",
	"release before the work stops",
	"new term before the old function returned",
	"no verification when the work returns",
	"validity ends after the delete",
	"renewals go on past StopTimeout",
	"lease not compared",
	"epoch not compared",
	"fence guards nothing",
	"else-branch unguarded",
	"local loss not looked at",
	"unknown outcome taken for a failure",
	"gate that checks and then lets go",
	"limit not frozen on a shared lease after StopTimeout",
	"key deleted a margin too early after StopTimeout",
	"campaign's context ends the term",
}

// perMutant is within how many seeds each has to be found.
const perMutant = 300

// tryMutants counts the seeds until each mutant is found. Words pick some.
func tryMutants(ctx context.Context, root string, o options, words []string) (survivors int, err error) {
	all, err := readMutants(filepath.Join(root, "tools", "mutants", "list.go"))
	if err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp("", "tenure-sim-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	if o.seeds == 0 {
		o.seeds = perMutant
	}
	o.out = dir
	fmt.Println("seeds  mutant: what gave it away")
	for _, name := range safety {
		i := slices.IndexFunc(all, func(m mutant) bool { return m.name == name })
		if i < 0 {
			return 0, fmt.Errorf("tools/mutants has no %q", name)
		}
		if len(words) > 0 && !slices.ContainsFunc(words, func(w string) bool { return strings.Contains(name, w) }) {
			continue
		}
		binary := filepath.Join(dir, "mutant.test")
		if err := all[i].build(ctx, root, dir, binary); err != nil {
			return 0, fmt.Errorf("%s: %w", name, err)
		}
		seeds, found := 0, ""
		each(ctx, binary, o, func(r report) bool {
			seeds++
			if len(r.Wrong) > 0 {
				found = fmt.Sprintf("seed %d, %s", r.Seed, strings.TrimSpace(r.Wrong[0]))
			}
			return found == ""
		})
		if ctx.Err() != nil {
			return survivors, ctx.Err()
		}
		if found == "" {
			survivors++
			fmt.Printf("%5s  %s, in %d seeds\n", "-", name, seeds)
			continue
		}
		fmt.Printf("%5d  %s: %s\n", seeds, name, found)
	}
	return survivors, nil
}

// build compiles the simulation of a library that has the fault.
func (m mutant) build(ctx context.Context, root, dir, binary string) error {
	path := filepath.Join(root, m.file)
	source, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if n := strings.Count(string(source), m.old); n != 1 {
		return fmt.Errorf("the text to replace occurs %d times in %s", n, m.file)
	}
	changed := filepath.Join(dir, "mutant.go")
	if err := os.WriteFile(changed, []byte(strings.Replace(string(source), m.old, m.new, 1)), 0o600); err != nil {
		return err
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{path: changed}})
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o600); err != nil {
		return err
	}
	if out, err := build(ctx, root, binary, "-overlay", filepath.Join(dir, "overlay.json")); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}

// readMutants takes the list of tools/mutants, a program of its own, from its
// source: literals of five strings each.
func readMutants(file string) (list []mutant, err error) {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		return nil, err
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		lit, ok := n.(*ast.CompositeLit)
		if !ok || len(lit.Elts) != 5 {
			return true
		}
		var fields [5]string
		for i, elt := range lit.Elts {
			text, ok := elt.(*ast.BasicLit)
			if !ok {
				return true
			}
			s, unquoteErr := strconv.Unquote(text.Value)
			err = errors.Join(err, unquoteErr)
			fields[i] = s
		}
		list = append(list, mutant{fields[0], fields[1], fields[2], fields[3]})
		return true
	})
	if len(list) == 0 {
		err = errors.Join(err, fmt.Errorf("%s holds no mutants", file))
	}
	return list, err
}
