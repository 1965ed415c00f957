// Package admin operates a zamok cluster: what `zamok members`, `backup`, `expire` and the like do.
//
//	c, err := client.Dial(ctx, "node1:5750", "node2:5750", "node3:5750")
//	…
//	defer c.Close()
//	members, cluster, err := admin.New(c).Members(ctx)
//
// An Admin uses the connections of a client, so the client's configuration holds for it: endpoints,
// TLS, credentials, and RequestTimeout. Its calls take no lock and open no session. They look for
// the leader, are repeated and fail as those of the client do: each error wraps one of its Err
// values, and Error.Outcome says what a failed call has changed.
//
// A change of the members (Join, Remove, Transfer) has a minute, and is never repeated. Backup is
// bounded by its context only. To look at locks a program needs no Admin: Client has Get, List,
// Check and Watch.
package admin
