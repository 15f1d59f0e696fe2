// Package integration tests the fences against real servers, which the tests
// start as throw-away instances. See the folder's tests, and `make integration`.
package integration
