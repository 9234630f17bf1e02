<?php
// A context of PHP: reads commands on descriptor 3, runs them, answers on descriptor 4.
//
// Started in the context's own folder. Source is evaluated in the global scope, so everything of ours is kept in one
// class. The protocol is in docs/functions-protocol.md.

class Retry extends Exception
{
    public function __construct(string $message = 'the function asked to be run again', public ?float $after = null)
    {
        parent::__construct($message, 100);
    }
}

class Fail extends Exception
{
    public function __construct(string $message = 'the function failed', int $code = 400)
    {
        parent::__construct($message, $code);
    }
}

final class WindlassContext
{
    private const AS_JSON =
        JSON_THROW_ON_ERROR | JSON_UNESCAPED_UNICODE | JSON_UNESCAPED_SLASHES | JSON_PRESERVE_ZERO_FRACTION;

    public static array $loaded = [];
    public static array $handler = [];
    public static ?Throwable $trouble = null; // why no job of this batch can be run
    public static bool $broken = false;
    public static string $mark = '';
    public static string $command = ''; // the one at hand
    private static array $wires = [];
    private const STARTS = '/\b(exec|shell_exec|system|passthru|proc_open|popen|pcntl_fork|mail)\b|`/i';
    private static bool $starts = false; // whether any source may start processes

    /** Descriptors of our own: those of the function may be closed by it. */
    public static function open(): void
    {
        foreach ([1 => 'w', 2 => 'w', 3 => 'r', 4 => 'w', 5 => 'w'] as $number => $mode) {
            self::$wires[$number] = @fopen("php://fd/$number", $mode);
        }
        self::$wires[6] = @fopen('php://fd/5', 'r');
    }

    /** Run jobs until another command comes; false when there are no more. */
    public static function next(): bool
    {
        while (($command = fgets(self::$wires[3])) !== false) {
            if (!str_starts_with($command, 'job ')) {
                self::$command = substr($command, 0, -1);
                return true;
            }
            self::run(...explode(' ', $command, 4));
        }
        return false;
    }

    public static function load(string $number, string $command): void
    {
        $command = array_map(self::untagged(...), json_decode($command, true, 512, JSON_THROW_ON_ERROR));
        self::$handler = $command + ['number' => $number, 'fault' => null];
        self::$mark = "\x1e" . self::$handler['mark'] . "\n";
        self::$starts = self::$starts || preg_match(self::STARTS, implode("\n", $command));
    }

    /** Source as `eval` takes it: a file of PHP begins with a tag. */
    private static function untagged(string $source): string
    {
        return preg_replace('/\A\s*<\?php\b/i', '', $source);
    }

    /** What a handler's `run` is called: it need not be the first in this process. */
    public static function body(): string
    {
        self::$handler['run'] = 'run';
        if (!function_exists('run')) {
            return self::$handler['body'];
        }
        self::$handler['run'] = 'run_' . self::$handler['number'];
        return self::renamed(self::$handler['body'], self::$handler['run']);
    }

    private static function renamed(string $source, string $name): string
    {
        [$text, $depth, $after] = ['', 0, ''];
        foreach (PhpToken::tokenize("<?php $source") as $token) {
            $depth += ['{' => 1, '}' => -1][$token->text] ?? 0;
            $text .= $depth === 0 && $after === 'function' && $token->text === 'run' ? $name : $token->text;
            $after = $token->isIgnorable() ? $after : strtolower($token->text);
        }
        return substr($text, strlen('<?php '));
    }

    /** Have the monitor end what a job has started ("s"), or leave alone what there is ("k"). */
    public static function askMonitor(string $what): void
    {
        if (!self::$starts || !self::$wires[5] || !self::$wires[6]) {
            return;
        }
        @fwrite(self::$wires[5], $what);
        @fread(self::$wires[6], 1);
        while ($what === 's' && function_exists('pcntl_waitpid') && pcntl_waitpid(-1, $status, 1) > 0) {
            // they have ended
        }
    }

    public static function keep(?Throwable $fault): void
    {
        self::askMonitor('k');
        if ($fault === null && !function_exists(self::$handler['run'])) {
            $fault = new TypeError('its body defines no run($payload)');
        }
        self::$broken = self::$broken || $fault !== null;
        self::$loaded[self::$handler['number']] = ['fault' => $fault] + self::$handler;
    }

    private static function run(string $verb, string $number, string $kind, string $data): void
    {
        try {
            if (self::$trouble !== null) {
                throw self::$trouble;
            }
            $answer = self::resultLine((self::$handler['run'])(self::read($kind, $data)));
        } catch (Throwable $fault) {
            $answer = self::errorLine($fault);
        }
        self::askMonitor('s');
        self::separate();
        self::send("done $number $answer\n");
    }

    /** What is printed from here on is the next job's. */
    public static function separate(): void
    {
        while (ob_get_level() && @ob_end_flush()) {
            // until one comes that was made so that it cannot be ended
        }
        fwrite(self::$wires[1], self::$mark);
        fwrite(self::$wires[2], self::$mark);
    }

    public static function send(string $text): void
    {
        for ($at = fwrite(self::$wires[4], $text); $at < strlen($text); $at += $wrote) {
            $wrote = fwrite(self::$wires[4], substr($text, $at));
            if (!$wrote) {
                exit(1);
            }
        }
    }

    private static function read(string $kind, string $data): mixed
    {
        if ($kind === 'json') {
            try {
                return json_decode($data, true, 512, JSON_THROW_ON_ERROR);
            } catch (JsonException $fault) {
                throw new Fail('its payload is no JSON: ' . $fault->getMessage());
            }
        }
        return $kind === 'text' ? substr($data, 0, -1) : base64_decode($data);
    }

    private static function resultLine(mixed $value): string
    {
        try {
            return '200 json ' . json_encode($value, self::AS_JSON);
        } catch (JsonException $fault) {
            return is_string($value) ? '200 base64 ' . base64_encode($value) : throw $fault;
        }
    }

    private static function errorLine(Throwable $fault): string
    {
        $code = $fault->getCode();
        $after = is_numeric($fault->after ?? null) ? (float) $fault->after : NAN;
        $known = is_int($code) && (($code >= 100 && $code < 200) || ($code >= 400 && $code < 600));
        $error = [
            'type' => get_class($fault),
            'message' => $fault->getMessage(),
            'traceback' => self::trace($fault),
            'after' => is_finite($after) ? $after : null,
        ];
        return ($known ? $code : 500) . ' error ' . json_encode($error, JSON_INVALID_UTF8_SUBSTITUTE);
    }

    /** Without the lines that are of this file's own code. */
    private static function trace(Throwable $fault): string
    {
        $place = fn($text) => preg_replace("/[^ ]+\\(\\d+\\) : eval\\(\\)'d code/", 'source', $text);
        $lines = array_map($place, explode("\n", $fault->getTraceAsString()));
        $theirs = array_filter($lines, fn($line) => !preg_match('/WindlassContext|{main}/', $line) && !str_contains($line, __FILE__));
        $where = $place($fault->getFile()) . ':' . $fault->getLine();
        return implode("\n", [get_class($fault) . ': ' . $fault->getMessage(), "at $where", ...$theirs]);
    }
}

WindlassContext::open();
while (WindlassContext::next()) {
    switch (strtok(WindlassContext::$command, ' ')) {
        case 'load':
            WindlassContext::load(...array_slice(explode(' ', WindlassContext::$command, 3), 1));
            try {
                eval(WindlassContext::$handler['before'] ?? '');
                eval(WindlassContext::body());
                WindlassContext::keep(null);
            } catch (Throwable $windlassFault) {
                WindlassContext::keep($windlassFault);
            }
            break;
        case 'batch':
            WindlassContext::$handler = WindlassContext::$loaded[substr(WindlassContext::$command, 6)];
            WindlassContext::$trouble = WindlassContext::$handler['fault'];
            if (WindlassContext::$trouble === null) {
                try {
                    eval(WindlassContext::$handler['beforeEach'] ?? '');
                } catch (Throwable $windlassFault) {
                    WindlassContext::$trouble = $windlassFault;
                }
                WindlassContext::askMonitor('k');
            }
            break;
        case 'end':
            if (WindlassContext::$trouble === null) {
                try {
                    eval(WindlassContext::$handler['afterEach'] ?? '');
                } catch (Throwable $windlassFault) {
                    WindlassContext::$broken = true;
                    fwrite(STDERR, "$windlassFault\n");
                }
            }
            WindlassContext::separate();
            WindlassContext::send(WindlassContext::$broken ? "end broken\n" : "end\n");
    }
}
