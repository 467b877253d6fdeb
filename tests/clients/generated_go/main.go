// A program on the client that oapi-codegen makes: it schedules, shows, lists, cancels, and is
// refused. Its argument is the server's address.
package main

import (
	"context"
	"fmt"
	"os"

	"generated/delaybridge"
)

func main() {
	if err := run(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("well")
}

func run(ctx context.Context, url string) error {
	api, err := delaybridge.NewClientWithResponses(url)
	if err != nil {
		return err
	}
	id, delay, body, priority := "go/ä", "1h", "{}", int64(3)
	headers := map[string]interface{}{"kind": "close"}
	message := delaybridge.NewMessage{
		Destination: "memory:orders", Delay: &delay, Body: &body, Id: &id, Priority: &priority, Headers: &headers,
	}
	made, err := api.ScheduleMessageWithResponse(ctx, message)
	if err != nil || made.JSON201 == nil || made.JSON201.Id != id {
		return fmt.Errorf("schedule: %v, %+v", err, made)
	}
	shown, err := api.ShowMessageWithResponse(ctx, id, nil)
	if err != nil || shown.JSON200 == nil || *shown.JSON200.Body != body || shown.JSON200.DueMs != made.JSON201.DueMs {
		return fmt.Errorf("show: %v, %+v", err, shown)
	}
	prefix := "go/"
	listed, err := api.ListMessagesByDueTimeWithResponse(ctx, &delaybridge.ListMessagesByDueTimeParams{IdPrefix: &prefix})
	if err != nil || listed.JSON200 == nil || len(listed.JSON200.Items) != 1 || listed.JSON200.NextCursor != nil {
		return fmt.Errorf("list: %v, %+v", err, listed)
	}
	second, nowhere := "go/2", message
	message.Id, nowhere.Destination = &second, "nowhere"
	batch, err := api.ScheduleManyMessagesWithResponse(ctx, delaybridge.Batch{Messages: []delaybridge.NewMessage{message, nowhere}})
	if err != nil || batch.JSON207 == nil || *batch.JSON207.Items[0].Result != "created" || *batch.JSON207.Items[1].Code != "bad_destination" {
		return fmt.Errorf("batch: %v, %+v", err, batch)
	}
	cancelled, err := api.CancelMessageWithResponse(ctx, id, nil)
	if err != nil || cancelled.JSON200 == nil || cancelled.JSON200.Result != "cancelled" {
		return fmt.Errorf("cancel: %v, %+v", err, cancelled)
	}
	gone, err := api.CancelMessageWithResponse(ctx, id, nil)
	if err != nil || gone.ApplicationproblemJSON404 == nil || gone.ApplicationproblemJSON404.Code != "unknown" {
		return fmt.Errorf("a refusal: %v, %+v", err, gone)
	}
	return nil
}
