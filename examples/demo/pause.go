package main

import "os"

// pause stops a process as a long garbage collection or a frozen virtual machine
// would, and resume lets it go on. They are nil where a system has no way to.
var pause, resume func(*os.Process) error
