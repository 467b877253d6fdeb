# With Bunny; see delayed_pika.py.
require 'bunny'
require 'json'

STDOUT.sync = true
def show(row)
  puts JSON.generate(row.merge(atMs: (Time.now.to_f * 1000).floor))
end

url, name, *delays = ARGV
connection = Bunny.new(url).start
channel = connection.create_channel
exchange = channel.exchange(
  name, type: 'x-delayed-message', durable: true, arguments: { 'x-delayed-type' => 'direct' }
)
queue = channel.queue(name, durable: true).bind(exchange, routing_key: 'a.b')
channel.confirm_select
delays.each_with_index do |delay, number|
  headers = { 'own' => 'kept' }
  headers['x-delay'] = delay.to_i unless delay == '-'
  show(sent: "m#{number}")
  exchange.publish(
    "body m#{number}", routing_key: 'a.b', headers: headers, message_id: "m#{number}",
                       content_type: 'text/plain', persistent: true, mandatory: true
  )
end
raise 'refused' unless channel.wait_for_confirms

done = Queue.new
queue.subscribe(manual_ack: true) do |delivery, properties, body|
  show(
    received: properties.message_id, exchange: delivery.exchange, key: delivery.routing_key,
    delay: properties.headers['x-delay'], own: properties.headers['own'],
    type: properties.content_type, body: body
  )
  channel.ack(delivery.delivery_tag)
  done << true
end
delays.each { done.pop }
connection.close
