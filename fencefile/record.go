package fencefile

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strconv"
	"strings"

	"github.com/tenure-go/tenure"
)

// maxLine is how long the first line of an entry may be. etcd's own limit leaves
// a key far below it, but not a key with every byte escaped.
const maxLine = 64 << 10

// entry is one record or seal of the file.
type entry struct {
	record Record
	seal   bool
	size   int64
}

// errNoRecord says that there is no whole entry at an offset.
var errNoRecord = errors.New("no record")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum covers the offset too, so that data that look like an entry are none,
// unless they were made for the place where they stand.
func checksum(at int64, head string, data []byte) uint32 {
	sum := crc32.Checksum([]byte(strconv.FormatInt(at, 10)+" "+head), castagnoli)
	return crc32.Update(sum, castagnoli, data)
}

// encode returns the entry for the place at.
func encode(fence tenure.Fence, data []byte, seal bool, at int64) ([]byte, error) {
	length := "-"
	if !seal {
		length = strconv.Itoa(len(data))
	}
	head := fence.String() + " " + length
	line := fmt.Sprintf("%s %08x\n", head, checksum(at, head, data))
	if len(line) > maxLine {
		return nil, fmt.Errorf("fencefile: the fence takes %d bytes: the line of a record has at most %d", len(line), maxLine)
	}
	if seal {
		return []byte(line), nil
	}
	return append(append([]byte(line), data...), '\n'), nil
}

// read reads the entry at a place of a file of the given size. [errNoRecord] says
// that there is no whole one; any other error is that of the file.
func read(file io.ReaderAt, at, size int64) (entry, error) {
	reader := bufio.NewReaderSize(io.NewSectionReader(file, at, size-at), maxLine)
	line, err := reader.ReadSlice('\n')
	if errors.Is(err, io.EOF) || errors.Is(err, bufio.ErrBufferFull) {
		return entry{}, errNoRecord
	}
	if err != nil {
		return entry{}, fmt.Errorf("fencefile: %w", err)
	}
	words := strings.Split(strings.TrimSuffix(string(line), "\n"), " ")
	if len(words) != 3 {
		return entry{}, errNoRecord
	}
	var e entry
	if err := e.record.Fence.UnmarshalText([]byte(words[0])); err != nil {
		return entry{}, errNoRecord
	}
	e.seal = words[1] == "-"
	e.size = int64(len(line))
	if !e.seal {
		n, err := strconv.ParseInt(words[1], 10, 64)
		if err != nil || n < 0 || n > MaxData || n+1 > size-at-e.size {
			return entry{}, errNoRecord
		}
		data := make([]byte, n+1)
		if _, err := io.ReadFull(reader, data); err != nil {
			return entry{}, fmt.Errorf("fencefile: %w", err)
		}
		if data[n] != '\n' {
			return entry{}, errNoRecord
		}
		e.record.Data = data[:n]
		e.size += n + 1
	}
	if words[2] != fmt.Sprintf("%08x", checksum(at, words[0]+" "+words[1], e.record.Data)) {
		return entry{}, errNoRecord
	}
	return e, nil
}

// find returns the place of the first whole entry behind a damaged one, or -1.
// Every entry ends with a line feed.
func find(file io.ReaderAt, at, size int64) (int64, error) {
	block := make([]byte, 64<<10)
	for at < size {
		n, err := file.ReadAt(block[:min(int64(len(block)), size-at)], at)
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, fmt.Errorf("fencefile: %w", err)
		}
		if n == 0 {
			break
		}
		for i := 0; ; {
			next := bytes.IndexByte(block[i:n], '\n')
			if next < 0 {
				break
			}
			i += next + 1
			if _, err := read(file, at+int64(i), size); err == nil {
				return at + int64(i), nil
			} else if !errors.Is(err, errNoRecord) {
				return 0, err
			}
		}
		at += int64(n)
	}
	return -1, nil
}
