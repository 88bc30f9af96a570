# Runs assertions of promptfoo as graders: reads a case per line from standard input, and writes its verdict.
require "json"

def grade
  $stdout.sync = true
  $stdin.each_line do |line|
    request = JSON.parse(line)
    result = yield(request["submission"], context_of(request))
    $stdout.puts(JSON.generate({ id: request["id"], **verdict(result, request["config"]) }))
  end
end

def context_of(request)
  sample = request["sample"]
  vars = sample.dig("metadata", "promptfoo", "vars") || {}
  {
    "vars" => vars,
    "prompt" => Array(sample["input"]).join("\n\n"),
    "config" => request["config"]["config"] || {},
    "test" => { "vars" => vars }
  }
end

def verdict(result, config)
  passed, score, reason = read(result, config["threshold"])
  passed, score = !passed, 1 - score if config["negate"]
  text = reason.nil? ? {} : { "rationale" => reason.to_s }
  # gradeline derives the pass from the score, so a score that says otherwise is only kept as metadata
  agrees = score.between?(0, 1) && (score >= config["pass_threshold"]) == passed
  agrees ? { "score" => score, **text } : { "passed" => passed, **text, "metadata" => { "score" => score } }
end

def read(result, threshold)
  case result
  when true, false then [result, result ? 1 : 0, nil]
  when Numeric then [threshold.nil? ? result.positive? : result >= threshold, result, nil]
  when Hash then read_hash(result.transform_keys(&:to_s), threshold)
  else raise "the assertion returned #{result.inspect}; return true, false, a number or {pass, score}"
  end
end

def read_hash(result, threshold)
  passed = result.key?("pass") ? result["pass"] : result["pass_"]
  raise "the assertion returned #{result.inspect}, which has no pass" unless [true, false].include?(passed)

  score = result["score"] || (passed ? 1 : 0)
  [passed && !(threshold && score < threshold), score, result["reason"]]
end
