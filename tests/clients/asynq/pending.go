// Enqueues tasks of asynq that are pending: scheduled ones, and one that waits for a retry.
// Usage: REDIS_URL QUEUE
package main

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/hibiken/asynq"
)

func main() {
	to, err := asynq.ParseRedisURI(os.Args[1])
	if err != nil {
		panic(err)
	}
	queue := os.Args[2]
	client := asynq.NewClient(to)
	defer client.Close()
	add := func(task *asynq.Task, options ...asynq.Option) {
		if _, err := client.Enqueue(task, append(options, asynq.Queue(queue))...); err != nil {
			panic(err)
		}
	}
	add(asynq.NewTask("mail:welcome", []byte(`{"to":"ä"}`)), asynq.ProcessIn(time.Hour), asynq.TaskID("own:id"))
	image := asynq.NewTaskWithHeaders("image", []byte{0, 255}, map[string]string{"trace": "t1"})
	add(image, asynq.ProcessIn(2*time.Hour), asynq.Unique(time.Hour), asynq.TaskID("image"))
	add(asynq.NewTask("fails", []byte("3")), asynq.TaskID("fails"))
	server := asynq.NewServer(to, asynq.Config{
		Queues:         map[string]int{queue: 1},
		LogLevel:       asynq.FatalLevel,
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return time.Hour },
	})
	failed := make(chan bool)
	handler := func(context.Context, *asynq.Task) error {
		defer close(failed)
		return errors.New("no")
	}
	if err := server.Start(asynq.HandlerFunc(handler)); err != nil {
		panic(err)
	}
	<-failed
	server.Shutdown()
}
