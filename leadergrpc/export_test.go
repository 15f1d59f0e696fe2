package leadergrpc

// KeyOf is the key of a target.
var KeyOf = keyOf
