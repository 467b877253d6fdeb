# Loaded by Ruby under `python -m tests.suites --delayed`: every exchange is a delayed one.
require "amq/protocol/client"

module Delayed
  TYPES = %w[direct fanout headers topic].freeze

  def encode(channel, exchange, type, passive, durable, auto_delete, internal, nowait, arguments)
    if !passive && TYPES.include?(type.to_s) && !exchange.empty? && !exchange.start_with?("amq.")
      arguments = (arguments || {}).merge("x-delayed-type" => type.to_s)
      type = "x-delayed-message"
    end
    super
  end
end

AMQ::Protocol::Exchange::Declare.singleton_class.prepend(Delayed)
