<?php
// With php-amqplib; see delayed_pika.py.
require 'PhpAmqpLib/autoload.php';

use PhpAmqpLib\Connection\AMQPStreamConnection;
use PhpAmqpLib\Message\AMQPMessage;
use PhpAmqpLib\Wire\AMQPTable;

function show(array $row): void
{
    echo json_encode($row + ['atMs' => (int) floor(microtime(true) * 1000)]), "\n";
}

[, $url, $name] = $argv;
$delays = array_slice($argv, 3);
$parts = parse_url($url);
$vhost = rawurldecode(substr($parts['path'], 1));
$connection = new AMQPStreamConnection(
    $parts['host'], $parts['port'], $parts['user'], $parts['pass'], $vhost
);
$channel = $connection->channel();
$kind = new AMQPTable(['x-delayed-type' => 'fanout']);
$channel->exchange_declare(
    $name, 'x-delayed-message', false, true, false, false, false, $kind
);
$channel->queue_declare($name, false, true, false, false);
$channel->queue_bind($name, $name);
$channel->confirm_select();
$channel->set_nack_handler(function () {
    throw new Exception('refused');
});
foreach ($delays as $number => $delay) {
    $headers = ['own' => 'kept'] + ($delay === '-' ? [] : ['x-delay' => (int) $delay]);
    $message = new AMQPMessage("body m$number", [
        'message_id' => "m$number",
        'content_type' => 'text/plain',
        'delivery_mode' => 2,
        'application_headers' => new AMQPTable($headers),
    ]);
    show(['sent' => "m$number"]);
    $channel->basic_publish($message, $name, 'a.b');
}
$channel->wait_for_pending_acks(60);
$left = count($delays);
$receive = function (AMQPMessage $message) use (&$left) {
    $headers = $message->get('application_headers')->getNativeData();
    show([
        'received' => $message->get('message_id'),
        'exchange' => $message->getExchange(),
        'key' => $message->getRoutingKey(),
        'delay' => $headers['x-delay'] ?? null,
        'own' => $headers['own'],
        'type' => $message->get('content_type'),
        'body' => $message->body,
    ]);
    $message->ack();
    $left--;
};
$channel->basic_consume($name, '', false, false, false, false, $receive);
while ($left > 0) {
    $channel->wait(null, false, 60);
}
$connection->close();
