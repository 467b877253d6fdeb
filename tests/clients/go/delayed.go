// Declares a delayed exchange, publishes to it, and prints what it receives: see delayed_pika.py.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func show(row map[string]any) {
	row["atMs"] = time.Now().UnixMilli()
	line, err := json.Marshal(row)
	must(err)
	fmt.Println(string(line))
}

func main() {
	url, name, delays := os.Args[1], os.Args[2], os.Args[3:]
	connection, err := amqp.Dial(url)
	must(err)
	channel, err := connection.Channel()
	must(err)
	kind := amqp.Table{"x-delayed-type": "topic"}
	must(channel.ExchangeDeclare(name, "x-delayed-message", true, false, false, false, kind))
	_, err = channel.QueueDeclare(name, true, false, false, false, nil)
	must(err)
	must(channel.QueueBind(name, "a.*", name, false, nil))
	must(channel.Confirm(false))
	for number, delay := range delays {
		headers := amqp.Table{"own": "kept"}
		if delay != "-" {
			headers["x-delay"], err = strconv.ParseInt(delay, 10, 64)
			must(err)
		}
		id := fmt.Sprintf("m%d", number)
		show(map[string]any{"sent": id})
		confirm, err := channel.PublishWithDeferredConfirmWithContext(
			context.Background(), name, "a.b", true, false,
			amqp.Publishing{Headers: headers, MessageId: id, ContentType: "text/plain",
				DeliveryMode: amqp.Persistent, Body: []byte("body " + id)})
		must(err)
		if !confirm.Wait() {
			must(fmt.Errorf("%s was refused", id))
		}
	}
	deliveries, err := channel.Consume(name, "", false, false, false, false, nil)
	must(err)
	for range delays {
		got := <-deliveries
		show(map[string]any{"received": got.MessageId, "exchange": got.Exchange,
			"key": got.RoutingKey, "delay": got.Headers["x-delay"], "own": got.Headers["own"],
			"type": got.ContentType, "body": string(got.Body)})
		must(got.Ack(false))
	}
	must(connection.Close())
}
