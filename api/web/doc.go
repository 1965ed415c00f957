// Package web is the front of a node for HTTP with JSON: it translates each request into requests
// of the wire for the gate. So both protocols have the same validation, permissions, limits and
// errors.
//
//	handler := web.New(web.Config{Gate: gate, …})
//	http.Serve(listener, handler)
//
// docs/guide/http.md teaches its use, and /v1/openapi.json describes it. Numbers of 64 bits are
// strings, since many languages would round them; durations are texts such as "30s"; names are
// never part of a path, since they may have slashes.
//
// # Files
//
//	web.go       the table of routes, and the one way of every request
//	call.go      what a request shows of its caller, and calls of the gate
//	pipe.go      streams of the wire, for watches and holds
//	values.go    how a request is read
//	errors.go    errors with their status
//	origin.go    requests from web pages of other sites are refused
//	locks.go     sessions, acquire, renew, release, downgrade, check
//	oneshot.go   an acquisition with a session of its own, repeatable by an Idempotency-Key
//	inspect.go   reading; package view has the answers
//	operate.go   what operators do
//	events.go    Server-Sent Events; watch
//	hold.go      a lock for as long as a connection lives
//	terraform.go the locks of Terraform's and OpenTofu's HTTP backend
//	openapi.json the description, which openapi_test.go makes from the table of routes
//	             (make generate)
//
// # Promises
//
//	W1  A request has the outcome that its calls had: an answer other than 2xx says what took
//	    effect (TestWrongRequestsNameTheirField, TestTicketsOverHTTP, TestClosingEndsWhatIsHeld,
//	    TestARefusedRepetitionLeavesTheDoubt, TestNoReleaseIsDoneFromIgnorance,
//	    TestAnAcquisitionWithoutALeaderIsInDoubt, TestARepeatedReleaseIsAnsweredAsItEnded).
//	W2  A request whose calls meet a change of leader is repeated here, with the same secret and
//	    ticket, which act once, until they have failed for retryFor. A downgrade and a removal are
//	    only while they are not done (TestSomeCallsAreRepeatedWhileTheyAreNotDone), and what else
//	    operators do is not (TestCallsAreRepeatedForAWhile, TestAWaitOutlivesTheLeader,
//	    TestAHoldContinuesAtTheNextLeader).
//	W3  An acquisition with a session of its own whose connection breaks before its answer ends
//	    with the connection: its session is closed (TestAWaitEndsWithItsConnection,
//	    TestAGrantThatCanNotBeAnswered). With an Idempotency-Key it is not, if a repetition has
//	    taken over or the answer was on its way (TestARepetitionTakesOver). A client that sends
//	    another request before it has the answer hides the end of its connection: the wait goes
//	    on, and the ttl ends what is granted then (TestARequestSentAheadHidesTheEnd).
//	W4  With the same Idempotency-Key, at any node: the same session, as long as that lives; never
//	    a second lock beside it, nor after its release or loss, for as long as that is remembered.
//	    Another request under the same key is refused (TestAKeyNamesOneAcquisition,
//	    TestAKeyTakenByManyCallsAtOnce, TestPollsKeepTheirPlace).
//	W5  A held connection (hold.go) is answered `granted` once, and `lost` as soon as this node
//	    can't confirm that the lease is alive (TestHoldSaysHowItEnded, TestHoldOutlivesTheLeader,
//	    TestAHoldWithoutALeaderIsLost, TestAHoldWhoseLeaderTakesNothing,
//	    TestASessionThatEndsBetweenStreams). The end of the connection closes the session
//	    (TestHoldLivesAsItsConnection, TestAHoldThatIsNotRead); if it is the node that ends, the
//	    ttl does (TestAKilledNodesHoldsEndWithTheirTTL).
//	W6  valid_for, counted from before the request was sent, ends before the session and before
//	    the lock's maximum hold do (TestValidForEndsInTime, TestCertaintyEndsWithTheMaximumHold).
package web
