// Package integration tests the fences against real servers, and the promises
// against released servers of etcd, all started by the tests as throw-away
// instances: `make integration`. Command chaos, in the folder of that name, does
// harm to real processes.
package integration
