// Package sim holds tests alone.
package sim
