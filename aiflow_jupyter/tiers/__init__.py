"""Which tier answers, and what it costs.

The way of a request:

    configured   the router that the settings describe, read anew for each request
      config       the files (`sections`: the settings; `fields`: what one may be; `mistakes`; `trust`; `keys`)
      making       a tier and its provider from its section (`discovery`: Ollama, or the embedded model)
    router       floor -> able -> fits -> healthy -> within budget -> asked -> first token -> finish
      choosing     which tiers come into question, in which order (`judging`, `judge/`)
      counting     how many tokens a chat takes; `conversation/` folds it where that is too many
      health       who rests; `attempt` asks one tier, with its deadlines
      booking      the worst case in the `ledger`, in the one file of `database`
    decision     what was decided and why, for people

They tell each other the types of `terms`. `overview`, `checks`, `costs` and `command` show what there is.
"""
